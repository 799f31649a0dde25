#include "call/plan.h"

#include <utility>

namespace forebay::worker {

void flatten(const ArgumentPlan& argument, std::vector<LayoutRef>& tensors) {
  switch (argument.tag) {
    case wire::Tag::kTensorList:
      for (const auto& item : argument.items) flatten(item, tensors);
      return;
    case wire::Tag::kTensor:
      return tensors.push_back(argument.layout);
    case wire::Tag::kNone:
    case wire::Tag::kScalarTensor:
      return tensors.push_back(nullptr);
    default:
      return;
  }
}

void flatten(const std::vector<OutputPlan>& outputs, std::vector<const OutputPlan*>& made) {
  for (const auto& output : outputs) {
    if (output.tag == wire::OutputTag::kNew) made.push_back(&output);
    flatten(output.items, made);
  }
}

LayoutRef Layouts::intern(const wire::Geometry& geometry) {
  wire::Writer key;
  wire::put_geometry(key, geometry.dtype, geometry.flags, geometry.sizes, geometry.strides);
  std::string text(key.bytes().begin(), key.bytes().end());
  const auto found = layouts_.find(text);
  if (found != layouts_.end()) return found->second;
  auto layout = std::make_shared<const Layout>(checked_layout(last_id_ + 1, geometry));
  ++last_id_;
  layouts_.emplace(std::move(text), layout);
  return layout;
}

}  // namespace forebay::worker
