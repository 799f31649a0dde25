#include "base/operator_info.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

namespace forebay {
namespace {

Kind kind_of(const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::kTensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Kind::kInt;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return Kind::kDouble;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return Kind::kBool;
    case c10::TypeKind::NumberType:
      return Kind::kScalar;
    case c10::TypeKind::StringType:
      return Kind::kString;
    case c10::TypeKind::DeviceObjType:
      return Kind::kDevice;
    case c10::TypeKind::GeneratorType:
      return Kind::kGenerator;
    case c10::TypeKind::ListType:
      break;
    default:
      return Kind::kUnsupported;
  }
  switch (kind_of(type->expectRef<c10::ListType>().getElementType())) {
    case Kind::kTensor:
      return Kind::kTensorList;
    case Kind::kInt:
      return Kind::kIntList;
    case Kind::kDouble:
      return Kind::kDoubleList;
    case Kind::kBool:
      return Kind::kBoolList;
    case Kind::kScalar:
      return Kind::kScalarList;
    default:
      return Kind::kUnsupported;
  }
}

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3ULL;
  return hash;
}

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int returned_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return -1;
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    const auto* alias = schema.arguments()[index].alias_info();
    if (alias != nullptr && alias->isWrite() && alias->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(index);
  }
  return -1;
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle)
    : op(handle), name(handle.operator_name().name), overload(handle.operator_name().overload_name), schema_hash(0) {
  const auto& schema = handle.schema();
  std::ostringstream text;
  text << schema;
  schema_hash = fnv1a(text.str());
  supported = true;
  writes_out = writes = false;
  for (const auto& argument : schema.arguments()) {
    arguments.push_back({kind_of(argument.type()), argument.alias_info() != nullptr && argument.alias_info()->isWrite(), argument.is_out()});
    writes_out = writes_out || argument.is_out();
    writes = writes || (arguments.back().written && arguments.back().kind == Kind::kTensor);
    supported = supported && arguments.back().kind != Kind::kUnsupported;
  }
  // Its whole numbers are lengths of the inputs, which meta kernels know.
  const bool counts_of_inputs = name == "aten::_scaled_dot_product_flash_attention";
  views = asks = false;
  for (const auto& result : schema.returns()) {
    returns.push_back(returned_argument(schema, result));
    views = views || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
    const Kind kind = kind_of(result.type());
    asks = asks || (kind != Kind::kTensor && kind != Kind::kTensorList && !counts_of_inputs);
  }
  random = handle.hasTag(at::Tag::nondeterministic_seeded) && name != "aten::_fused_sdp_choice";  // which only says what will draw
  asks = asks || handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output);
  // What these return besides the embeddings differs between kinds of devices and modes.
  asks = asks || is_any_of(name, {"aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::multilabel_margin_loss_forward"});
  pointwise = handle.hasTag(at::Tag::pointwise) || is_any_of(name, {"aten::eq_", "aten::ge_", "aten::gt_", "aten::le_", "aten::lt_", "aten::ne_"});
  heeds_settings = !pointwise && !views;
  generator = schema.argumentIndexWithName("generator");
  distribution = is_any_of(name, {"aten::bernoulli_", "aten::cauchy_", "aten::exponential_", "aten::geometric_", "aten::log_normal_", "aten::normal_", "aten::random_",
                                  "aten::uniform_"}) &&
                 overload != "Tensor";
  output_mask = schema.argumentIndexWithName("output_mask");
  scalars_shape = is_any_of(name, {"aten::arange", "aten::range", "aten::linspace", "aten::logspace"});
  takes_indices = is_any_of(name, {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"});
  fills_expanded = is_any_of(name, {"aten::index_fill_", "aten::index_put_", "aten::_index_put_impl_", "aten::masked_fill_"});
  normalizes = !writes_out &&
               is_any_of(name, {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update", "aten::native_layer_norm",
                                "aten::native_group_norm"});
  if (normalizes) {
    trains = schema.argumentIndexWithName("training");
    for (const auto* statistics : {"running_mean", "running_var"}) {  // which native_batch_norm's schema does not say are written
      if (const auto index = schema.argumentIndexWithName(statistics)) arguments[static_cast<size_t>(*index)].written = true;
    }
  }
}

}  // namespace forebay
