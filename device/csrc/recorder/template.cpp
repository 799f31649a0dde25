#include "recorder/template.h"

#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <vector>

#include "forebay/default_dtype.h"
#include "recorder/sparse.h"
#include "runtime/storage.h"

namespace forebay {
namespace {

using torch::jit::Stack;
using wire::OutputTag;
using wire::Tag;

void check_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (wire::carries_geometry(sizes, strides)) return;
  TORCH_CHECK(sizes.size() <= wire::kDimsMax, "a tensor of ", sizes.size(), " dimensions: PyTorch's operators take at most ", wire::kDimsMax, " of them");
  TORCH_CHECK(false, "a tensor of sizes ", sizes, " and strides ", strides, ": the virtual device takes numbers from 0 to ", wire::kStorageBytesMax,
              " there, also of tensors without elements, and as many elements");
}

void put_dense(wire::Writer& out, const at::Tensor& tensor) {
  check_geometry(tensor.sizes(), tensor.strides());
  wire::put_geometry(out, static_cast<uint8_t>(tensor.scalar_type()), flags_of(tensor), tensor.sizes(), tensor.strides());
}

void put_tensor(wire::Writer& out, const at::Tensor& tensor) {
  if (!tensor.defined()) return out.tag(Tag::kNone);
  if (tensor.is_cuda() && is_sparse(tensor)) return put_sparse(out, tensor, put_dense);
  if (tensor.is_cuda()) {
    out.tag(Tag::kTensor);
    return put_dense(out, tensor);
  }
  out.tag(Tag::kScalarTensor);
  out.u8(static_cast<uint8_t>(tensor.scalar_type()));
  out.u8(tensor.unsafeGetTensorImpl()->is_wrapped_number());
}

void put_scalar(wire::Writer& out, const at::Scalar& value) {
  if (value.isBoolean()) return out.tag(Tag::kScalarBool);
  if (value.isIntegral(false)) return out.tag(Tag::kScalarInt);
  out.tag(value.isFloatingPoint() ? Tag::kScalarDouble : Tag::kScalarComplex);
}

void put_items(wire::Writer& out, Tag tag, c10::ArrayRef<c10::IValue> list) {
  out.tag(tag);
  out.varint(list.size());
  for (const auto& item : list) {
    switch (tag) {
      case Tag::kTensorList:
        put_tensor(out, item.isNone() ? at::Tensor() : item.toTensor());
        break;
      case Tag::kScalarList:
        put_scalar(out, item.toScalar());
        break;
      default:
        out.zigzag(item.toInt());
    }
  }
}

void put_argument(wire::Writer& out, const c10::IValue& value, Kind kind) {
  if (value.isNone()) return out.tag(Tag::kNone);
  switch (kind) {
    case Kind::kTensor:
      return put_tensor(out, value.toTensor());
    case Kind::kTensorList:
      return put_items(out, Tag::kTensorList, value.toListRef());
    case Kind::kScalarList:
      return put_items(out, Tag::kScalarList, value.toListRef());
    case Kind::kIntList:
      return put_items(out, Tag::kIntList, value.toListRef());
    case Kind::kInt:
      out.tag(Tag::kInt);
      return out.zigzag(value.toInt());
    case Kind::kDouble:
      return out.tag(Tag::kDouble);
    case Kind::kBool:
      out.tag(Tag::kBool);
      return out.u8(value.toBool());
    case Kind::kScalar:
      return put_scalar(out, value.toScalar());
    case Kind::kString:
      out.tag(Tag::kString);
      return out.string(value.toStringRef());
    case Kind::kDevice:
      out.tag(Tag::kDevice);
      return out.u8(!value.toDevice().is_cpu());
    case Kind::kGenerator:
      return out.tag(Tag::kGenerator);
    case Kind::kDoubleList:
      out.tag(Tag::kDoubleList);
      return out.varint(value.toDoubleVector().size());
    case Kind::kBoolList: {
      const auto list = value.toBoolList();
      out.tag(Tag::kBoolList);
      out.varint(list.size());
      for (const bool flag : list) out.u8(flag);
      return;
    }
    case Kind::kUnsupported:
      TORCH_CHECK(false, "an argument of a kind that the command stream has no word for");
  }
}

// How many of the wire's tensor arguments an argument is: anything absent counts as one.
size_t tensors_in(const c10::IValue& value, Kind kind) {
  if (kind == Kind::kTensor && value.isTensor() && value.toTensor().defined() && is_sparse(value.toTensor())) return parts_of(value.toTensor()).size();
  if (value.isNone() || kind == Kind::kTensor) return 1;
  return kind == Kind::kTensorList ? value.toListRef().size() : 0;
}

// The number of the first tensor of each argument, lists flattened.
std::vector<size_t> tensor_numbers(const OperatorInfo& info, const Stack& stack) {
  std::vector<size_t> numbers;
  size_t next = 0;
  for (size_t index = 0; index < stack.size(); ++index) {
    numbers.push_back(next);
    next += tensors_in(stack[index], info.arguments[index].kind);
  }
  return numbers;
}

void put_geometry(wire::Writer& out, const ResultGeometry& item) {
  if (!item.defined) return out.tag(OutputTag::kNone);
  check_geometry(item.sizes, item.strides);
  check_storage_bytes(item.storage_bytes);
  out.tag(OutputTag::kNew);
  wire::put_geometry(out, static_cast<uint8_t>(item.dtype), 0, item.sizes, item.strides);
  out.varint(static_cast<uint64_t>(item.storage_bytes));
}

void put_result(wire::Writer& out, const Result& result, const OperatorInfo& info, const Stack& stack, const std::vector<size_t>& numbers) {
  if (result.argument < 0) {
    if (result.items.empty() && !result.list) return out.tag(OutputTag::kUnknown);
    if (result.list) {
      out.tag(OutputTag::kList);
      out.varint(result.items.size());
    }
    for (const auto& item : result.items) put_geometry(out, item);
    return;
  }
  const auto argument = static_cast<size_t>(result.argument);
  if (info.arguments[argument].kind != Kind::kTensorList) {
    out.tag(OutputTag::kSame);
    return out.varint(numbers[argument]);
  }
  const size_t count = tensors_in(stack[argument], Kind::kTensorList);
  out.tag(OutputTag::kList);
  out.varint(count);
  for (size_t item = 0; item < count; ++item) {
    out.tag(OutputTag::kSame);
    out.varint(numbers[argument] + item);
  }
}

// What a worker would refuse, and end the session for it.
void check_limits(const OperatorInfo& info, const Stack& stack, const Prediction& prediction) {
  size_t items = 0;
  const auto count = [&](size_t more) {
    items += more;
    TORCH_CHECK(items <= wire::kTemplateItemsMax, info.name, ": its lists hold more than ", wire::kTemplateItemsMax,
                " items together, as many as one call may have on the virtual device; make several calls of it");
  };
  for (size_t index = 0; index < stack.size(); ++index) {
    if (stack[index].isList()) count(stack[index].toListRef().size());
    TORCH_CHECK(!stack[index].isString() || stack[index].toStringRef().size() <= wire::kStringBytesMax, info.name, ": a text of more than ",
                wire::kStringBytesMax, " bytes is not sent to the virtual device");
  }
  for (const auto& result : prediction.results) {
    const bool same_list = result.argument >= 0 && stack[static_cast<size_t>(result.argument)].isList();
    if (result.list || same_list) count(same_list ? stack[static_cast<size_t>(result.argument)].toListRef().size() : result.items.size());
  }
}

}  // namespace

uint8_t flags_of(const at::Tensor& tensor) {
  return static_cast<uint8_t>((tensor.is_conj() ? wire::kFlagConj : 0) | (tensor.is_neg() ? wire::kFlagNeg : 0));
}

int64_t new_bytes_of(const Prediction& prediction) {
  int64_t bytes = 0;
  for (const auto& result : prediction.results) {
    for (const auto& item : result.items) bytes += item.defined ? item.storage_bytes : 0;
  }
  return bytes;
}

wire::Writer template_of(const OperatorInfo& info, const Stack& stack, const Prediction& prediction, at::ScalarType default_dtype) {
  check_limits(info, stack, prediction);
  TORCH_CHECK(default_dtype != at::ScalarType::Float4_e2m1fn_x2, "the virtual device computes nothing under the default dtype ", default_dtype);
  wire::Writer out;
  out.u8(wire::with_default_dtype(info.random ? wire::kTemplateRandom : 0, static_cast<uint8_t>(default_dtype)));
  out.varint(stack.size());
  for (size_t index = 0; index < stack.size(); ++index) put_argument(out, stack[index], info.arguments[index].kind);
  const auto numbers = tensor_numbers(info, stack);
  out.varint(prediction.results.size());
  for (const auto& result : prediction.results) put_result(out, result, info, stack, numbers);
  return out;
}

}  // namespace forebay
