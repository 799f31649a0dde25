// Layers of recurrent networks: each sequence of a batch by itself. Sequences, their results and the states have the batch in the middle.
#include "strategies/strategy.h"

namespace forebay::worker {

namespace {

const Labels kBatch{kUncut, 0, kUncut};

bool layer(StrategyDraft& draft) {
  for (const char* name : {"input", "state"}) draft.label(name, kBatch);
  const size_t states = draft.numbers("state").size();
  for (size_t output = 0; output < draft.outputs().size(); ++output) {
    if (output <= states) draft.result(output, kBatch);
    else draft.result(output, {kUncut}, Merge::kSame);  // no bytes: what each device keeps for its part's derivative lies beside it
  }
  return true;
}

// The gradients of the weights are sums over the batch.
bool layer_backward(StrategyDraft& draft) {
  for (const char* name : {"input", "state", "gradients"}) draft.label(name, kBatch);
  for (const size_t tensor : draft.numbers("results")) {
    if (draft.tensors()[tensor]->sizes.size() == 3) draft.label(tensor, kBatch);
  }
  const size_t states = draft.numbers("state").size();
  for (size_t output = 0; output < draft.outputs().size(); ++output) {
    if (output <= states) draft.result(output, kBatch);
    else draft.result(output, Labels(draft.outputs()[output]->geometry.sizes.size(), kUncut), Merge::kSum);
  }
  return true;
}

}  // namespace

const StrategyRules& recurrent_rules() {
  static const StrategyRules rules{
      {"recurrent_layer", layer},
      {"recurrent_layer_backward", layer_backward},
  };
  return rules;
}

}  // namespace forebay::worker
