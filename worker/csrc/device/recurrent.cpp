#include "device/recurrent.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/cached.h"
#include "forebay/operators.h"

namespace forebay::worker {
namespace {

using at::Tensor;
using at::TensorList;
using Gradients = std::vector<Tensor>;

using wire::kGruCell, wire::kLstmCell, wire::kReluCell, wire::kTanhCell;

// A direction's part of a layer. Without biases the last two are undefined.
struct Direction {
  Tensor h, c, from_input, from_hidden, input_bias, hidden_bias;
};

struct Layer {
  Layer(const Tensor& input, TensorList state, TensorList weights, int64_t cell, bool bidirectional);

  Direction direction(int64_t number) const;
  int64_t per_direction() const { return biases ? 4 : 2; }

  const Tensor& input;
  TensorList state, weights;
  int64_t cell, directions, hidden = 0;
  bool biases;
};

void check_alike(const Tensor& tensor, const Tensor& input, at::IntArrayRef sizes, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.layout() == at::kStrided && tensor.scalar_type() == input.scalar_type() && tensor.device() == input.device(),
              "a recurrent layer's ", what, " must be of its input's type and device");
  TORCH_CHECK(tensor.sizes() == sizes, "a recurrent layer's ", what, " must have sizes ", sizes, ", not ", tensor.sizes());
}

// Kernels trust what is held against each other here.
Layer::Layer(const Tensor& input_, TensorList state_, TensorList weights_, int64_t cell_, bool bidirectional)
    : input(input_), state(state_), weights(weights_), cell(cell_), directions(bidirectional ? 2 : 1), biases(weights_.size() == static_cast<size_t>(directions) * 4) {
  TORCH_CHECK(cell >= kReluCell && cell <= kGruCell, "a recurrent layer has no cell ", cell);
  TORCH_CHECK(input.defined() && input.dim() == 3 && input.numel() > 0 && at::isFloatingType(input.scalar_type()) && input.layout() == at::kStrided,
              "a recurrent layer takes a sequence of floating-point numbers with elements, in three dimensions");
  TORCH_CHECK(state.size() == (cell == kLstmCell ? 2u : 1u), "a recurrent layer is given ", state.size(), " states");
  TORCH_CHECK(biases || weights.size() == static_cast<size_t>(directions) * 2, "a recurrent layer is given ", weights.size(), " weights");
  TORCH_CHECK(state[0].defined() && state[0].dim() == 3 && state[0].numel() > 0, "a recurrent layer's state must have three dimensions");
  hidden = state[0].size(2);
  for (const auto& one : state) check_alike(one, input, {directions, input.size(1), hidden}, "state");
  const int64_t rows = wire::kCellGates[cell] * hidden;
  for (int64_t number = 0; number < directions; ++number) {
    const auto part = direction(number);
    check_alike(part.from_input, input, {rows, input.size(2)}, "weight of the input");
    check_alike(part.from_hidden, input, {rows, hidden}, "weight of the state");
    if (!biases) continue;
    check_alike(part.input_bias, input, {rows}, "bias");
    check_alike(part.hidden_bias, input, {rows}, "bias");
  }
}

Direction Layer::direction(int64_t number) const {
  const auto first = static_cast<size_t>(number * per_direction());
  Direction part{state[0][number], cell == kLstmCell ? state[1][number] : Tensor(), weights[first], weights[first + 1], {}, {}};
  if (biases) part.input_bias = weights[first + 2], part.hidden_bias = weights[first + 3];
  return part;
}

// What comes in for a direction: of its half of the output, of its last states.
struct Incoming {
  std::optional<Tensor> output, h, c;
};

Incoming incoming_of(const Layer& layer, const c10::List<std::optional<Tensor>>& gradients, int64_t number) {
  const auto given = [&](size_t place) { return place < gradients.size() ? std::optional<Tensor>(gradients.get(place)) : std::nullopt; };
  const auto part = [&](std::optional<Tensor> whole, auto&& of) { return whole && whole->defined() ? std::optional<Tensor>(of(*whole)) : std::nullopt; };
  const auto last = [&](const Tensor& whole) { return whole[number]; };
  return {part(given(0), [&](const Tensor& whole) { return whole.narrow(2, number * layer.hidden, layer.hidden); }), part(given(1), last), part(given(2), last)};
}

// Of a direction: input, h, c where there is one, and its weights.
struct Outgoing {
  Tensor input, h, c;
  std::vector<Tensor> weights;
};

// Step by step.

// What a step leaves for its derivative.
struct Step {
  Tensor h, c;            // before it
  std::vector<Tensor> gates;
  Tensor extra;           // tanh of an LSTM's cell; the state's part of a GRU's new gate
};

// The state after a step, given what comes of the input and of the state before, which is written over. In PyTorch's order and its places: the last elements
// of a row have other last bits than the ones before them.
std::pair<Tensor, Tensor> step_forward(int64_t cell, const Tensor& of_input, const Tensor& of_hidden, Step& step) {
  if (cell == kReluCell || cell == kTanhCell) {
    const Tensor sum = of_input + of_hidden;
    step.gates = {cell == kReluCell ? sum.relu() : sum.tanh()};
    return {step.gates[0], {}};
  }
  if (cell == kLstmCell) {
    const auto parts = (of_input + of_hidden).chunk(4, 1);
    step.gates = {parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()};
    const Tensor c = step.gates[1] * step.c + step.gates[0] * step.gates[2];
    step.extra = c.tanh();
    return {step.gates[3] * step.extra, c};
  }
  const auto of_x = of_input.chunk(3, 1), of_h = of_hidden.chunk(3, 1);
  const Tensor reset = of_h[0].add_(of_x[0]).sigmoid_(), update = of_h[1].add_(of_x[1]).sigmoid_();
  step.gates = {reset, update, (of_x[2] + reset * of_h[2]).tanh()};
  step.extra = of_h[2];
  return {step.gates[2] + update * (step.h - step.gates[2]), {}};
}

// Gradients of what came of the input and of the state, of the state before beside the latter's, and of the cell before.
struct StepGradients {
  Tensor of_input, of_hidden, h, c;
};

StepGradients step_backward(int64_t cell, const Step& step, const Tensor& h, const Tensor& c) {
  const auto& gates = step.gates;
  if (cell == kReluCell || cell == kTanhCell) {
    const Tensor sum = cell == kReluCell ? h * (gates[0] > 0) : h * (1 - gates[0] * gates[0]);
    return {sum, sum, {}, {}};
  }
  if (cell == kLstmCell) {
    const Tensor &in = gates[0], &forget = gates[1], &fresh = gates[2], &out = gates[3];
    const Tensor of_c = c + h * out * (1 - step.extra * step.extra);
    const Tensor sum = at::cat({of_c * fresh * in * (1 - in), of_c * step.c * forget * (1 - forget), of_c * in * (1 - fresh * fresh), h * step.extra * out * (1 - out)}, 1);
    return {sum, sum, {}, of_c * forget};
  }
  const Tensor &reset = gates[0], &update = gates[1], &fresh = gates[2];
  const Tensor to_update = h * (step.h - fresh) * update * (1 - update), to_fresh = h * (1 - update) * (1 - fresh * fresh);
  const Tensor to_reset = to_fresh * step.extra * reset * (1 - reset);
  return {at::cat({to_reset, to_update, to_fresh}, 1), at::cat({to_reset, to_update, to_fresh * reset}, 1), h * update, {}};
}

// Of a direction, what its kernel makes, and what it keeps for the derivative: its steps, or oneDNN's workspace.
struct Made {
  Tensor output, h, c;
  std::vector<Step> steps;
  Tensor workspace;
};

// To the bit as PyTorch's own kernels for the host.
Made forward_by_steps(const Layer& layer, const Direction& part, bool reverse) {
  Made made{{}, part.h, part.c, {}, {}};
  std::vector<Tensor> outputs;
  Tensor of_input = at::linear(layer.input, part.from_input, part.input_bias);
  if (reverse) of_input = of_input.flip(0);
  for (int64_t time = 0; time < of_input.size(0); ++time) {
    made.steps.push_back({made.h, made.c, {}, {}});
    std::tie(made.h, made.c) = step_forward(layer.cell, of_input[time], at::linear(made.h, part.from_hidden, part.hidden_bias), made.steps.back());
    outputs.push_back(made.h);
  }
  if (reverse) std::reverse(outputs.begin(), outputs.end());
  made.output = at::stack(outputs);
  return made;
}

// On any device: backpropagation through time (Werbos 1990), with the products of all steps' weights as one.
Outgoing backward_by_steps(const Layer& layer, const Direction& part, const Made& made, const Incoming& incoming, bool reverse) {
  const Tensor input = reverse ? layer.input.flip(0) : layer.input;
  const auto& steps = made.steps;
  const std::optional<Tensor> of_output = incoming.output && reverse ? std::optional(incoming.output->flip(0)) : incoming.output;
  Tensor h = incoming.h.value_or(at::zeros_like(part.h)), c = layer.cell == kLstmCell ? incoming.c.value_or(at::zeros_like(part.h)) : Tensor();
  std::vector<Tensor> of_inputs(steps.size()), of_hiddens(steps.size()), before;
  for (size_t time = steps.size(); time-- > 0;) {
    if (of_output) h = h + (*of_output)[static_cast<int64_t>(time)];
    auto found = step_backward(layer.cell, steps[time], h, c);
    const Tensor through = at::mm(found.of_hidden, part.from_hidden);
    h = found.h.defined() ? through + found.h : through;
    c = found.c;
    of_inputs[time] = std::move(found.of_input);
    of_hiddens[time] = std::move(found.of_hidden);
  }
  for (const auto& step : steps) before.push_back(step.h);
  const Tensor of_input = at::cat(of_inputs, 0), of_hidden = at::cat(of_hiddens, 0);
  Outgoing outgoing{at::mm(of_input, part.from_input).view_as(input), h, c, {at::mm(of_input.t(), input.reshape({-1, input.size(2)})), at::mm(of_hidden.t(), at::cat(before, 0))}};
  if (reverse) outgoing.input = outgoing.input.flip(0);
  if (layer.biases) outgoing.weights.insert(outgoing.weights.end(), {of_input.sum(0), of_hidden.sum(0)});
  return outgoing;
}

// By oneDNN, as natively: an LSTM in single precision.
bool takes_onednn(const Layer& layer) {
  return layer.cell == kLstmCell && layer.input.is_cpu() && layer.input.scalar_type() == at::kFloat && at::hasMKLDNN() && at::globalContext().userEnabledMkldnn();
}

// As oneDNN takes a direction.
struct Plain {
  Plain(const Layer& layer, const Direction& part)
      : input(layer.input.contiguous()), h(part.h.contiguous()), c(part.c.contiguous()), input_bias(part.input_bias), hidden_bias(part.hidden_bias) {
    if (!layer.biases) input_bias = hidden_bias = at::zeros({wire::kCellGates[kLstmCell] * layer.hidden}, layer.input.options());
  }

  Tensor input, h, c, input_bias, hidden_bias;
};

Made forward_by_onednn(const Layer& layer, const Direction& part, bool reverse) {
  const Plain plain(layer, part);
  const at::AutoGradMode keeps_workspace(true);
  auto [output, h, c, workspace] = at::mkldnn_rnn_layer(plain.input, part.from_input, part.from_hidden, plain.input_bias, plain.hidden_bias, plain.h, plain.c, reverse, {},
                                                        kLstmCell, layer.hidden, 1, layer.biases, layer.directions == 2, false, /*train=*/true);
  return {output, h, c, {}, workspace};
}

Outgoing backward_by_onednn(const Layer& layer, const Direction& part, const Made& made, const Incoming& incoming, bool reverse) {
  const Plain plain(layer, part);
  const auto all = [](const std::optional<Tensor>& given, const Tensor& like) { return given ? given->contiguous() : at::zeros_like(like); };
  const auto found =
      at::mkldnn_rnn_layer_backward(plain.input, part.from_input, part.from_hidden, plain.input_bias, plain.hidden_bias, plain.h, plain.c, made.output, made.h, made.c,
                                    all(incoming.output, made.output), all(incoming.h, made.h), all(incoming.c, made.c), reverse, kLstmCell, layer.hidden, 1, layer.biases,
                                    true, layer.directions == 2, {}, false, made.workspace);
  const auto& [of_input, of_from_input, of_from_hidden, of_input_bias, of_hidden_bias, of_h, of_c] = found;
  Outgoing outgoing{of_input, of_h, of_c, {of_from_input, of_from_hidden}};
  if (layer.biases) outgoing.weights.insert(outgoing.weights.end(), {of_input_bias, of_hidden_bias.clone()});
  return outgoing;
}

Made forward_of(const Layer& layer, int64_t number) {
  const auto by = takes_onednn(layer) ? forward_by_onednn : forward_by_steps;
  return by(layer, layer.direction(number), number == 1);
}

// By cuDNN, as natively.
bool takes_cudnn(const Layer& layer) { return layer.input.is_cuda() && at::cudnn_is_acceptable(layer.input); }

// All directions at once, and what cuDNN keeps for its derivative: its reserve, and the weights as it has them.
struct MadeByCudnn {
  Tensor output, h, c, reserve, weights;
};

// Says nothing: PyTorch would have the weights in one piece, which are the session's, and warns at each call.
class NoWarning : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

MadeByCudnn forward_by_cudnn(const Layer& layer) {
  static NoWarning nothing;
  const c10::WarningUtils::WarningHandlerGuard silent(&nothing);
  const std::optional<Tensor> c = layer.cell == kLstmCell ? std::optional(layer.state[1].contiguous()) : std::nullopt;
  auto [output, last_h, last_c, reserve, weights] = at::_cudnn_rnn(layer.input.contiguous(), layer.weights, layer.per_direction(), {}, layer.state[0].contiguous(), c, layer.cell,
                                                                   layer.hidden, 0, 1, false, 0, /*train=*/true, layer.directions == 2, {}, {});
  return {output, last_h, last_c, reserve, weights};
}

// Of calls that an accelerator records as a graph, and of those between two such graphs. For one thread, as devices are.
thread_local uint64_t stretch = 0;

// What a layer keeps for its derivative, beside the storage of its last result, which has no bytes. Workspaces are opaque: they hold for this process and for
// such a layer alone, and the kernel trusts their size. A storage that was parked, moved, or made by anything else than `forward` has nothing beside it: then
// the derivative computes the layer again; where memory of the host was short since; and where it is recorded apart from the layer, as a graph would hold on
// to an address.
struct Kept {
  std::vector<Made> directions;  // without what the session has: output and last states
  MadeByCudnn all;               // likewise
};

struct Reserve {
  using Shape = std::array<int64_t, 8>;
  enum class By { kSteps, kOneDnn, kCudnn };

  Shape shape;
  By by;
  uint64_t stretch;
  c10::weak_intrusive_ptr<c10::StorageImpl> output;  // that was made with it
  Cached kept;
};

Reserve::By kernel_of(const Layer& layer) {
  if (takes_cudnn(layer)) return Reserve::By::kCudnn;
  return takes_onednn(layer) ? Reserve::By::kOneDnn : Reserve::By::kSteps;
}

Reserve::Shape shape_of(const Layer& layer) {
  const auto& input = layer.input;
  return {layer.cell, static_cast<int64_t>(input.scalar_type()), input.size(0), input.size(1), input.size(2), layer.hidden, layer.directions, layer.biases};
}

void drop_reserve(void* reserve) { delete static_cast<Reserve*>(reserve); }

Tensor beside_nothing(std::unique_ptr<Reserve> reserve, const Layer& layer) {
  c10::DataPtr nothing(nullptr, reserve.release(), &drop_reserve, layer.input.device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(0), std::move(nothing), nullptr, /*resizable=*/false);
  const auto key = c10::computeDispatchKey(at::kByte, at::kStrided, layer.input.device());
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key), caffe2::TypeMeta::Make<uint8_t>());
}

// Null where nothing is kept for this layer.
std::shared_ptr<Kept> kept_for(const Layer& layer, TensorList results) {
  if (!results.back().defined() || !results.back().has_storage()) return nullptr;
  auto* found = results.back().storage().data_ptr().cast_context<Reserve>(&drop_reserve);
  if (found == nullptr || found->output.lock().get() != results[0].storage().unsafeGetStorageImpl()) return nullptr;
  const auto kept = std::static_pointer_cast<Kept>(found->kept.contents());
  const bool is_gone = kept == nullptr || (found->by == Reserve::By::kCudnn && !kept->all.reserve.defined());  // or used
  return !is_gone && found->shape == shape_of(layer) && found->by == kernel_of(layer) && found->stretch == stretch ? kept : nullptr;
}

// Whether what the kernels here keep serves the derivative, and their results are PyTorch's to the bit.
bool can_keep(const Layer& layer) {
  return takes_cudnn(layer) || (layer.input.is_cpu() && (takes_onednn(layer) || layer.cell != kLstmCell || layer.input.scalar_type() == at::kDouble));
}

// The results, and behind them what is kept beside the first one.
std::vector<Tensor> with_reserve(const Layer& layer, std::vector<Tensor> results, Kept kept) {
  auto output = results[0].storage().getWeakStorageImpl();
  auto contents = std::make_shared<Kept>(std::move(kept));
  std::unique_ptr<Reserve> reserve(new Reserve{shape_of(layer), kernel_of(layer), stretch, std::move(output), Cached(std::move(contents), layer.input.is_cpu())});
  results.push_back(beside_nothing(std::move(reserve), layer));
  return results;
}

std::vector<Tensor> forward_and_keep_by_cudnn(const Layer& layer) {
  MadeByCudnn made = forward_by_cudnn(layer);
  std::vector<Tensor> results{made.output.contiguous(), made.h.contiguous()};
  if (layer.cell == kLstmCell) results.push_back(made.c.contiguous());
  return with_reserve(layer, std::move(results), {{}, {{}, {}, {}, std::move(made.reserve), std::move(made.weights)}});
}

std::vector<Tensor> forward_and_keep(const Layer& layer) {
  std::vector<Made> kept;
  std::vector<Tensor> outputs, hs, cs;
  for (int64_t number = 0; number < layer.directions; ++number) {
    Made made = forward_of(layer, number);
    outputs.push_back(std::move(made.output));
    hs.push_back(std::move(made.h));
    cs.push_back(std::move(made.c));
    kept.push_back({{}, {}, {}, std::move(made.steps), std::move(made.workspace)});
  }
  const bool both = layer.directions == 2;
  std::vector<Tensor> results{both ? at::cat(outputs, 2) : std::move(outputs[0])};
  results.push_back(both ? at::stack(hs) : hs[0].unsqueeze(0));
  if (layer.cell == kLstmCell) results.push_back(both ? at::stack(cs) : cs[0].unsqueeze(0));
  return with_reserve(layer, std::move(results), {std::move(kept), {}});
}

std::vector<Tensor> forward(const Tensor& input, TensorList state, TensorList weights, int64_t cell, bool bidirectional, bool keeps) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Layer layer(input, state, weights, cell, bidirectional);
  if (keeps && takes_cudnn(layer)) return forward_and_keep_by_cudnn(layer);
  if (keeps && can_keep(layer)) {
    try {
      return forward_and_keep(layer);
    } catch (const c10::OutOfMemoryError&) {  // then the derivative computes the layer again
    }
  }
  std::vector<Tensor> results;
  if (cell == kLstmCell) {
    const auto [output, h, c] = at::lstm(input, state, weights, layer.biases, /*num_layers=*/1, /*dropout=*/0, /*train=*/false, bidirectional, /*batch_first=*/false);
    results = {output.contiguous(), h.contiguous(), c.contiguous()};
  } else {
    const auto of = [&](auto&& kernel) { return kernel(input, state[0], weights, layer.biases, 1, 0.0, false, bidirectional, false); };
    const auto [output, h] = cell == kGruCell    ? of([](auto&&... all) { return at::gru(all...); })
                             : cell == kTanhCell ? of([](auto&&... all) { return at::rnn_tanh(all...); })
                                                 : of([](auto&&... all) { return at::rnn_relu(all...); });
    results = {output.contiguous(), h.contiguous()};
  }
  if (keeps) results.push_back(at::empty({0}, input.options().dtype(at::kByte)));
  return results;
}

// What the layer made of a direction, and kept, if anything; or computed again.
Made made_of(const Layer& layer, TensorList results, const Kept* kept, int64_t number) {
  if (kept == nullptr) return forward_of(layer, number);
  Made made = kept->directions[static_cast<size_t>(number)];
  made.output = results[0].narrow(2, number * layer.hidden, layer.hidden).contiguous();
  made.h = results[1][number].contiguous();
  if (layer.cell == kLstmCell) made.c = results[2][number].contiguous();
  return made;
}

// All directions at once. cuDNN writes to its reserve, so that another derivative of the same results finds none.
Gradients backward_by_cudnn(const Layer& layer, const c10::List<std::optional<Tensor>>& gradients, TensorList results, Kept* kept) {
  const Tensor input = layer.input.contiguous(), h = layer.state[0].contiguous();
  const std::optional<Tensor> c = layer.cell == kLstmCell ? std::optional(layer.state[1].contiguous()) : std::nullopt;
  const auto given = [&](size_t place) -> std::optional<Tensor> {
    const std::optional<Tensor> one = place < gradients.size() ? std::optional<Tensor>(gradients.get(place)) : std::nullopt;
    return one && one->defined() ? std::optional(one->contiguous()) : std::nullopt;
  };
  MadeByCudnn made = kept == nullptr ? forward_by_cudnn(layer) : std::exchange(kept->all, {});
  if (kept != nullptr) made.output = results[0].contiguous();
  auto [of_input, of_h, of_c, of_weights] =
      at::_cudnn_rnn_backward(input, layer.weights, layer.per_direction(), made.weights, h, c, made.output, given(0), given(1), given(2), layer.cell, layer.hidden, 0, 1, false, 0,
                              true, layer.directions == 2, {}, {}, made.reserve, {true, true, c.has_value(), true});
  Gradients found{of_input, of_h};
  if (layer.cell == kLstmCell) found.push_back(of_c);
  for (const auto& one : of_weights) found.push_back(one.clone());  // parts of one buffer
  return found;
}

void check_result(const Layer& layer, const Tensor& one, size_t place, const char* what) {
  const int64_t rows = layer.input.size(1);
  if (place == 0) return check_alike(one, layer.input, {layer.input.size(0), rows, layer.directions * layer.hidden}, what);
  check_alike(one, layer.input, {layer.directions, rows, layer.hidden}, what);
}

// Of a direction. Where there is no memory for what oneDNN keeps while it runs, which is several times the weights, step by step: to the last bits as well.
Outgoing outgoing_of(const Layer& layer, TensorList results, std::shared_ptr<Kept> kept, const Incoming& incoming, int64_t number) {
  const Direction part = layer.direction(number);
  const bool reverse = number == 1;
  if (!takes_onednn(layer)) return backward_by_steps(layer, part, made_of(layer, results, kept.get(), number), incoming, reverse);
  try {
    return backward_by_onednn(layer, part, made_of(layer, results, kept.get(), number), incoming, reverse);
  } catch (const c10::OutOfMemoryError&) {
    kept.reset();  // it may go
  }
  return backward_by_steps(layer, part, forward_by_steps(layer, part, reverse), incoming, reverse);
}

Gradients backward(const c10::List<std::optional<Tensor>>& gradients, TensorList results, const Tensor& input, TensorList state, TensorList weights, int64_t cell,
                   bool bidirectional) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Layer layer(input, state, weights, cell, bidirectional);
  const size_t count = state.size() + 1;
  TORCH_CHECK(gradients.size() == count, "a recurrent layer has ", count, " results, of which ", gradients.size(), " gradients are given");
  TORCH_CHECK(results.size() == count + 1, "a recurrent layer has ", count, " results and what it keeps; its derivative is given ", results.size());
  for (size_t place = 0; place < count; ++place) {
    check_result(layer, results[place], place, "result");
    const std::optional<Tensor> one = gradients.get(place);
    if (one && one->defined()) check_result(layer, *one, place, "gradient");
  }
  if (takes_cudnn(layer)) return backward_by_cudnn(layer, gradients, results, kept_for(layer, results).get());
  std::vector<Outgoing> outgoing;
  for (int64_t number = 0; number < layer.directions; ++number) {
    outgoing.push_back(outgoing_of(layer, results, kept_for(layer, results), incoming_of(layer, gradients, number), number));
  }
  const bool both = layer.directions == 2;
  const auto stacked = [&](Tensor Outgoing::*part) { return both ? at::stack({outgoing[0].*part, outgoing[1].*part}) : (outgoing[0].*part).unsqueeze(0).contiguous(); };
  Gradients found{both ? outgoing[0].input + outgoing[1].input : outgoing[0].input.contiguous(), stacked(&Outgoing::h)};
  if (cell == kLstmCell) found.push_back(stacked(&Outgoing::c));
  for (const auto& one : outgoing) {
    for (const auto& weight : one.weights) found.push_back(weight.contiguous());
  }
  return found;
}

}  // namespace

void part_reserves() { ++stretch; }

bool keeps_beside(const c10::Storage& storage) { return storage && storage.data_ptr().get_deleter() == &drop_reserve; }

void define_recurrent_layers() {
  static const bool defined = [] {
    static torch::Library definitions(torch::Library::FRAGMENT, "forebay", std::nullopt, __FILE__, __LINE__);
    for (const auto& own : wire::kOwnOperators) {
      if (!c10::Dispatcher::singleton().findSchema({std::string(wire::kOwnNamespace) + own.name, ""})) definitions.def(own.schema);
    }
    static torch::Library kernels(torch::Library::IMPL, "forebay", c10::DispatchKey::CompositeExplicitAutograd, __FILE__, __LINE__);
    kernels.impl("recurrent_layer", forward);
    kernels.impl("recurrent_layer_backward", backward);
    return true;
  }();
  (void)defined;
}

}  // namespace forebay::worker
