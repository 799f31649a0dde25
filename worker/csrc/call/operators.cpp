#include "call/operators.h"

#include <array>
#include <string_view>

#include <ATen/core/function_schema.h>
#include <ATen/core/enum_tag.h>

#include "forebay/operators.h"

namespace forebay::worker {

namespace {

struct Ban {
  std::string_view name;    // after "aten::"; a trailing * stands for any ending
  std::string_view reason;
};

constexpr std::string_view kOpensFiles = "it opens files";
constexpr std::string_view kUnwritten = "its result shows memory that nothing has written; ALLOCATE gives zeroed storages";
constexpr std::string_view kMetadata = "it changes a tensor's metadata, which is the client's alone";
constexpr std::string_view kStorage = "it replaces or shares storages behind the session's back";
constexpr std::string_view kUnchecked = "it does not check that its result lies within the storage";
constexpr std::string_view kLayout = "its tensors are not strided (sparse, nested, quantized, MKL-DNN or zero tensors)";
constexpr std::string_view kPacked = "it takes host objects packed into tensors and trusts their addresses";
constexpr std::string_view kAutograd = "it belongs to autograd, which runs at the client";
constexpr std::string_view kHost = "it speaks of the host's process, not of tensors";
constexpr std::string_view kIndices = "its kernel trusts integers that lead out of its tensors";
constexpr std::string_view kLengths = "it does not compare the lengths of its lists";
constexpr std::string_view kTests = "it is there for PyTorch's own tests";

constexpr std::string_view kUnlisted = "it is not on the allow-list (forebay/operators.inc)";

// What keeps an operator off the allow-list; these are told first, since they say why. Patterns over the names of operators, first match counts.
constexpr std::array kBans{
    Ban{"from_file*", kOpensFiles},
    Ban{"save*", kOpensFiles},
    Ban{"_print*", kHost},
    Ban{"warn*", kHost},
    Ban{"_async_error*", kHost},
    Ban{"manual_seed*", kHost},
    Ban{"seed*", kHost},
    Ban{"_cufft_*", kHost},
    Ban{"_nnpack_available", kHost},
    Ban{"_pin_memory*", kHost},
    Ban{"pin_memory*", kHost},
    Ban{"is_pinned*", kHost},
    Ban{"record_stream*", kHost},
    Ban{"sym_*", kHost},
    Ban{"_make_dep_token*", kHost},
    Ban{"_propagate_xla_data*", kHost},
    Ban{"empty", kUnwritten},
    Ban{"empty_like", kUnwritten},
    Ban{"empty_strided", kUnwritten},
    Ban{"empty_permuted", kUnwritten},
    Ban{"new_empty", kUnwritten},
    Ban{"new_empty_strided", kUnwritten},
    Ban{"_empty_*", kUnwritten},
    Ban{"empty_quantized*", kLayout},
    Ban{"resize*", kMetadata},
    Ban{"_resize*", kMetadata},
    Ban{"rename*", kMetadata},
    Ban{"as_strided_", kMetadata},
    Ban{"set_*", kStorage},
    Ban{"set", kStorage},
    Ban{"swap*", kStorage},
    Ban{"_lazy_clone*", kStorage},
    Ban{"lift*", kStorage},
    Ban{"_to_cpu*", kStorage},
    Ban{"_copy_from*", kStorage},
    Ban{"_reshape_alias*", kUnchecked},
    Ban{"_sparse*", kLayout},
    Ban{"sparse_*", kLayout},
    Ban{"_spdiags*", kLayout},
    Ban{"_spsolve*", kLayout},
    Ban{"_spmm*", kLayout},
    Ban{"copy_sparse_*", kLayout},
    Ban{"sspaddmm*", kLayout},
    Ban{"_sspaddmm*", kLayout},
    Ban{"hspmm*", kLayout},
    Ban{"smm*", kLayout},
    Ban{"to_sparse*", kLayout},
    Ban{"_to_sparse*", kLayout},
    Ban{"to_dense*", kLayout},
    Ban{"_to_dense*", kLayout},
    Ban{"to_mkldnn*", kLayout},
    Ban{"mkldnn_*", kLayout},
    Ban{"_mkldnn_*", kLayout},
    Ban{"coalesce*", kLayout},
    Ban{"_coalesce*", kLayout},
    Ban{"is_coalesced*", kLayout},
    Ban{"_indices*", kLayout},
    Ban{"indices*", kLayout},
    Ban{"_values*", kLayout},
    Ban{"values*", kLayout},
    Ban{"crow_indices*", kLayout},
    Ban{"col_indices*", kLayout},
    Ban{"ccol_indices*", kLayout},
    Ban{"row_indices*", kLayout},
    Ban{"dense_dim*", kLayout},
    Ban{"_dimI*", kLayout},
    Ban{"_dimV*", kLayout},
    Ban{"_nnz*", kLayout},
    Ban{"_convert_indices_from_*", kLayout},
    Ban{"_validate_*", kLayout},
    Ban{"_jagged*", kLayout},
    Ban{"_padded_dense*", kLayout},
    Ban{"_nested*", kLayout},
    Ban{"nested_*", kLayout},
    Ban{"is_nested*", kLayout},
    Ban{"to_padded_tensor*", kLayout},
    Ban{"_efficientzerotensor*", kLayout},
    Ban{"_is_zerotensor*", kLayout},
    Ban{"quantize_*", kLayout},
    Ban{"quantized_*", kPacked},
    Ban{"dequantize*", kLayout},
    Ban{"q_*", kLayout},
    Ban{"qscheme*", kLayout},
    Ban{"int_repr*", kLayout},
    Ban{"_make_per_*", kLayout},
    Ban{"fbgemm_*", kPacked},
    Ban{"_wrapped_*", kPacked},
    Ban{"_cslt_*", kPacked},
    Ban{"_dyn_quant_*", kIndices},
    Ban{"_weight_int4pack*", kIndices},
    Ban{"_convert_weight_to_int4pack*", kIndices},
    Ban{"_use_cudnn_rnn_flatten_weight", kHost},
    Ban{"_backward*", kAutograd},
    Ban{"requires_grad_*", kAutograd},
    Ban{"retain_grad*", kAutograd},
    Ban{"retains_grad*", kAutograd},
    Ban{"_version*", kAutograd},
    Ban{"output_nr*", kAutograd},
    Ban{"is_leaf*", kAutograd},
    Ban{"data", kAutograd},
    Ban{"detach_", kAutograd},
    Ban{"_fw_primal*", kAutograd},
    Ban{"_make_dual*", kAutograd},
    Ban{"_unpack_dual*", kAutograd},
    Ban{"_has_same_storage_numel*", kAutograd},
    Ban{"_new_zeros_with_same_feature_meta*", kAutograd},
    Ban{"_add_batch_dim*", kAutograd},
    Ban{"_remove_batch_dim*", kAutograd},
    Ban{"_add_relu*", kLayout},
    Ban{"_sobol_engine_*", kIndices},
    Ban{"_foreach_copy", kLengths},
    Ban{"_stack*", kLengths},
    Ban{"_test_*", kTests},
    Ban{"_foobar*", kTests},
};

constexpr std::string_view kNamespace = "aten::";

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.back() != '*') return pattern == name;
  pattern.remove_suffix(1);
  return name.substr(0, pattern.size()) == pattern;
}

// Types that the wire can carry as an argument.
bool is_carried(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::GeneratorType:
      return true;
    case c10::TypeKind::OptionalType:
      return is_carried(type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: {
      const auto& element = type->expectRef<c10::ListType>().getElementType();
      if (element->kind() == c10::TypeKind::OptionalType) {
        return element->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::TensorType;
      }
      return is_carried(element) && element->kind() != c10::TypeKind::ListType && element->kind() != c10::TypeKind::StringType &&
             element->kind() != c10::TypeKind::DeviceObjType && element->kind() != c10::TypeKind::GeneratorType;
    }
    default:
      return false;
  }
}

bool is_told(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
      return true;
    case c10::TypeKind::ListType:
      return type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::TensorType;
    default:
      return false;
  }
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

uint64_t schema_hash(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char byte : text) value = (value ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return value;
}

std::string reason_against(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const bool own = wire::is_own(name);
  if (!own && name.compare(0, kNamespace.size(), kNamespace) != 0) return "only operators of namespace aten are served";
  const bool sparse = wire::takes_sparse(wire::local_name(full_name(op.operator_name())));
  for (const auto& ban : kBans) {
    if (sparse || own) break;
    if (matches(ban.name, wire::local_name(name))) return std::string(ban.reason);
  }
  if (op.hasTag(at::Tag::inplace_view)) return std::string(kMetadata);
  if (!sparse && !own && !wire::is_listed(wire::local_name(full_name(op.operator_name())))) return std::string(kUnlisted);
  for (const auto& argument : op.schema().arguments()) {
    if (!is_carried(argument.type())) return "the command stream carries no " + argument.type()->str();
  }
  for (const auto& result : op.schema().returns()) {
    if (!is_told(result.type())) return "the command stream tells no " + result.type()->str();
  }
  return "";
}

c10::OperatorHandle resolve(const std::string& name, const std::string& overload, uint64_t hash) {
  const c10::OperatorName key(name, overload);
  const auto op = c10::Dispatcher::singleton().findSchema(key);
  if (!op) throw wire::WireError("operator " + full_name(key) + " does not exist in the worker's PyTorch");
  const std::string reason = reason_against(*op);
  if (!reason.empty()) throw wire::WireError("operator " + full_name(key) + " is not allowed: " + reason);
  if (schema_hash(toString(op->schema())) != hash) {
    throw wire::WireError("operator " + full_name(key) + " has another schema here (" + toString(op->schema()) +
                          ") than at the client; use the same version of PyTorch on both sides");
  }
  return *op;
}

std::vector<std::pair<std::string, uint64_t>> allowed() {
  std::vector<std::pair<std::string, uint64_t>> result;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && reason_against(*op).empty()) result.emplace_back(full_name(name), schema_hash(toString(op->schema())));
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> denied() {
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.compare(0, kNamespace.size(), kNamespace) != 0) continue;
    std::string reason = reason_against(*op);
    if (!reason.empty()) result.emplace_back(full_name(name), std::move(reason));
  }
  return result;
}

}  // namespace forebay::worker
