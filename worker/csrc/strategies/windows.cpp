// Operators on images and their like: convolutions, pooling, padding, interpolation. A batch, and for most of them its channels, are apart.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// All tensors and results have the same dimensions in front, and `mixed` others behind them.
bool planes(StrategyDraft& draft, size_t mixed) {
  if (draft.tensors().empty()) return false;
  const size_t rank = draft.tensors().front()->sizes.size();
  if (rank <= mixed) return false;
  for (size_t tensor = 0; tensor < draft.tensors().size(); ++tensor) {
    if (draft.tensors()[tensor]->sizes.size() != rank) return false;
    draft.label(tensor, leading_labels(rank - mixed, rank));
  }
  draft.results(leading_labels(rank - mixed, rank));
  return true;
}

bool lines(StrategyDraft& draft) { return planes(draft, 1); }
bool areas(StrategyDraft& draft) { return planes(draft, 2); }
bool volumes(StrategyDraft& draft) { return planes(draft, 3); }

// Channels are mixed, too.
bool images(StrategyDraft& draft) { return planes(draft, 3); }

// The sizes of what was interpolated are numbers of the call.
bool interpolation_backward(StrategyDraft& draft, size_t mixed) {
  if (!planes(draft, mixed) || draft.integers("input_size").size() != mixed + 2) return false;
  draft.size("input_size", 0, 0);
  draft.size("input_size", 1, 1);
  return true;
}

bool lines_backward(StrategyDraft& draft) { return interpolation_backward(draft, 1); }
bool areas_backward(StrategyDraft& draft) { return interpolation_backward(draft, 2); }
bool volumes_backward(StrategyDraft& draft) { return interpolation_backward(draft, 3); }

bool convolution(StrategyDraft& draft) {
  const size_t rank = draft.rank("input");
  if (draft.rank("weight") != rank) return false;
  draft.label("input", leading_labels(1, rank));
  draft.results(leading_labels(1, rank));
  return true;
}

// The gradients of weight and bias are sums over the batch.
bool convolution_backward(StrategyDraft& draft) {
  const size_t rank = draft.rank("input");
  if (draft.rank("grad_output") != rank || draft.rank("weight") != rank) return false;
  draft.label("grad_output", leading_labels(1, rank));
  draft.label("input", leading_labels(1, rank));
  draft.result(0, leading_labels(1, rank));
  draft.result(1, Labels(rank, kUncut), Merge::kSum);
  draft.result(2, {kUncut}, Merge::kSum);
  return true;
}

// Columns of windows, of a batch alone.
bool columns(StrategyDraft& draft) {
  const bool is_batch = draft.rank("self") == (draft.name() == "im2col" ? 4u : 3u);
  const size_t rank = draft.rank("self"), made = draft.name() == "im2col" ? 3 : 4;
  draft.label("self", leading_labels(1, rank));
  draft.results(leading_labels(1, made));
  return is_batch && !draft.is_tensor("out");
}

// Points of a grid for each image of a batch.
bool grid_sampler(StrategyDraft& draft) {
  draft.label("input", leading_labels(1, draft.rank("input")));
  draft.label("grid", leading_labels(1, draft.rank("grid")));
  draft.results(leading_labels(1, draft.rank("input")));
  return !draft.is_tensor("out");
}

bool grid_sampler_backward(StrategyDraft& draft) {
  if (!grid_sampler(draft)) return false;
  draft.label("grad_output", leading_labels(1, draft.rank("grad_output")));
  return true;
}

bool fractional_max_pool(StrategyDraft& draft, size_t mixed) {
  const size_t rank = draft.rank("self");
  if (rank != mixed + 2 || draft.rank("random_samples") != 3) return false;
  for (const char* name : {"self", "output", "indices"}) draft.label(name, leading_labels(2, rank));
  draft.label("random_samples", leading_labels(2, 3));
  draft.results(leading_labels(2, rank));
  return true;
}

bool fractional_max_pool2d(StrategyDraft& draft) { return fractional_max_pool(draft, 2); }
bool fractional_max_pool3d(StrategyDraft& draft) { return fractional_max_pool(draft, 3); }

}  // namespace

const StrategyRules& window_rules() {
  static const StrategyRules rules{
      {"_adaptive_avg_pool2d", areas},
      {"_adaptive_avg_pool2d_backward", areas},
      {"_adaptive_avg_pool3d", volumes},
      {"_adaptive_avg_pool3d_backward", volumes},
      {"_upsample_bicubic2d_aa", areas},
      {"_upsample_bicubic2d_aa_backward", areas_backward},
      {"_upsample_bilinear2d_aa", areas},
      {"_upsample_bilinear2d_aa_backward", areas_backward},
      {"_upsample_lanczos2d_aa", areas},
      {"_upsample_lanczos2d_aa_backward", areas_backward},
      {"_upsample_nearest_exact1d", lines},
      {"_upsample_nearest_exact1d_backward", lines_backward},
      {"_upsample_nearest_exact2d", areas},
      {"_upsample_nearest_exact2d_backward", areas_backward},
      {"_upsample_nearest_exact3d", volumes},
      {"_upsample_nearest_exact3d_backward", volumes_backward},
      {"adaptive_avg_pool2d", areas},
      {"adaptive_avg_pool3d", volumes},
      {"adaptive_avg_pool3d_backward", volumes},
      {"adaptive_max_pool2d", areas},
      {"adaptive_max_pool2d_backward", areas},
      {"adaptive_max_pool3d", volumes},
      {"adaptive_max_pool3d_backward", volumes},
      {"avg_pool2d", areas},
      {"avg_pool2d_backward", areas},
      {"avg_pool3d", volumes},
      {"avg_pool3d_backward", volumes},
      {"col2im", columns},
      {"convolution", convolution},
      {"convolution_backward", convolution_backward},
      {"fractional_max_pool2d", fractional_max_pool2d},
      {"fractional_max_pool2d_backward", areas},
      {"fractional_max_pool3d", fractional_max_pool3d},
      {"fractional_max_pool3d_backward", volumes},
      {"grid_sampler_2d", grid_sampler},
      {"grid_sampler_2d_backward", grid_sampler_backward},
      {"grid_sampler_3d", grid_sampler},
      {"grid_sampler_3d_backward", grid_sampler_backward},
      {"im2col", columns},
      {"max_pool2d_with_indices", areas},
      {"max_pool2d_with_indices_backward", areas},
      {"max_pool3d_with_indices", volumes},
      {"max_pool3d_with_indices_backward", volumes},
      {"max_unpool2d", areas},
      {"max_unpool3d", volumes},
      {"pixel_shuffle", images},
      {"pixel_unshuffle", images},
      {"reflection_pad1d", lines},
      {"reflection_pad1d_backward", lines},
      {"reflection_pad2d", areas},
      {"reflection_pad2d_backward", areas},
      {"reflection_pad3d", volumes},
      {"reflection_pad3d_backward", volumes},
      {"replication_pad1d", lines},
      {"replication_pad1d_backward", lines},
      {"replication_pad2d", areas},
      {"replication_pad2d_backward", areas},
      {"replication_pad3d", volumes},
      {"replication_pad3d_backward", volumes},
      {"upsample_bicubic2d", areas},
      {"upsample_bicubic2d_backward", areas_backward},
      {"upsample_bilinear2d", areas},
      {"upsample_bilinear2d_backward", areas_backward},
      {"upsample_linear1d", lines},
      {"upsample_linear1d_backward", lines_backward},
      {"upsample_nearest1d", lines},
      {"upsample_nearest1d_backward", lines_backward},
      {"upsample_nearest2d", areas},
      {"upsample_nearest2d_backward", areas_backward},
      {"upsample_nearest3d", volumes},
      {"upsample_nearest3d_backward", volumes_backward},
      {"upsample_trilinear3d", volumes},
      {"upsample_trilinear3d_backward", volumes_backward},
  };
  return rules;
}

}  // namespace forebay::worker
