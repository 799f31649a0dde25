#include "call/description.h"

#include <sstream>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace forebay::worker {

namespace {

using wire::Tag;

constexpr size_t kItemsShown = 8;

void put_tensor(std::ostream& out, const Layout& layout) {
  out << c10::getDtypeNames(layout.dtype).first << c10::IntArrayRef(layout.sizes);
  int64_t usual = 1;
  bool contiguous = true;
  for (size_t left = layout.sizes.size(); left > 0; --left) {
    contiguous = contiguous && (layout.sizes[left - 1] == 1 || layout.strides[left - 1] == usual);
    usual *= layout.sizes[left - 1];
  }
  if (!contiguous) out << " of strides " << c10::IntArrayRef(layout.strides);
}

void put(std::ostream& out, const ArgumentPlan& argument) {
  switch (argument.tag) {
    case Tag::kNone:
      out << "None";
      return;
    case Tag::kTensor:
      return put_tensor(out, *argument.layout);
    case Tag::kSparse:
      out << c10::getDtypeNames(argument.items.back().layout->dtype).first << c10::IntArrayRef(argument.sizes) << " " << argument.sparse;
      return;
    case Tag::kScalarTensor:
      out << c10::getDtypeNames(argument.dtype).first << "[]";
      return;
    case Tag::kTensorList:
      out << "[";
      for (size_t index = 0; index < argument.items.size() && index < kItemsShown; ++index) {
        if (index > 0) out << ", ";
        put(out, argument.items[index]);
      }
      out << (argument.items.size() > kItemsShown ? ", ...]" : "]");
      return;
    case Tag::kInt:
    case Tag::kIntList:
    case Tag::kBool:
    case Tag::kBoolList:
    case Tag::kString:
    case Tag::kDevice:
      out << argument.prototype;
      return;
    default:
      out << "a number";  // bound by each call
  }
}

}  // namespace

std::string inputs_of(const Plan& plan) {
  std::ostringstream out;
  const auto& declared = plan.op.schema().arguments();
  bool first = true;
  for (size_t index = 0; index < plan.arguments.size() && index < declared.size(); ++index) {
    const auto& argument = plan.arguments[index];
    if (argument.tag == Tag::kNone || argument.tag == Tag::kGenerator) continue;
    out << (first ? "" : ", ") << declared[index].name() << ": ";
    put(out, argument);
    first = false;
  }
  return out.str();
}

}  // namespace forebay::worker
