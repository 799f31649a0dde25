#include "sharding/local_call.h"

namespace forebay::worker {

namespace {

void collect_tensors(std::vector<wire::Argument>& arguments, std::vector<wire::Argument*>& tensors) {
  for (auto& argument : arguments) {
    if (argument.tag == wire::Tag::kTensor) tensors.push_back(&argument);
    collect_tensors(argument.items, tensors);
  }
}

void collect_outputs(std::vector<wire::Output>& outputs, std::vector<wire::Output*>& all) {
  for (auto& output : outputs) {
    if (output.tag == wire::OutputTag::kList) collect_outputs(output.items, all);
    else all.push_back(&output);
  }
}

}  // namespace

int64_t item_bytes_of(const wire::Geometry& geometry) { return static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(geometry.dtype))); }

bool is_gapless(const wire::Output& output) {
  const auto elements = wire::elements_of(output.geometry.sizes);
  return elements && *elements * item_bytes_of(output.geometry) == output.storage_bytes && wire::span_of(output.geometry) == *elements;
}

LocalCall::LocalCall(const wire::Template& call) : local(call) {
  collect_tensors(local.arguments, tensors_);
  collect_outputs(local.outputs, outputs_);
  way.starts.resize(tensors_.size());
}

void LocalCall::take_rows(size_t tensor, int64_t period, const LocalView& view) {
  auto& geometry = tensors_[tensor]->geometry;
  way.starts[tensor] = {Way::Start::Kind::kRows, item_bytes_of(geometry), period, view.room, 0};
  geometry = view.geometry;
}

void LocalCall::take_part(size_t tensor, size_t dimension, int64_t devices) {
  auto& geometry = tensors_[tensor]->geometry;
  auto& start = way.starts[tensor];
  geometry.sizes[dimension] /= devices;
  start.kind = Way::Start::Kind::kPart;
  const bool is_empty = wire::elements_of(geometry.sizes).value_or(0) == 0;
  start.step = is_empty ? 0 : geometry.sizes[dimension] * geometry.strides[dimension];  // nothing lies behind no elements
}

bool LocalCall::make_rows(wire::Output& output, size_t dimension, int64_t rows, int64_t devices) {
  const int64_t item_bytes = item_bytes_of(output.geometry), period = period_of(output.geometry, dimension, rows, item_bytes);
  if (!is_gapless(output) || period == 0 || output.storage_bytes % period != 0) return false;
  const auto view = local_view(output.geometry, item_bytes, period, devices);
  if (!view || view->dimension != dimension) return false;
  make(output, {Sharing::kRows, period, 0});
  output.geometry = view->geometry;
  output.storage_bytes /= devices;
  return true;
}

}  // namespace forebay::worker
