#include "call/rollback.h"

#include <algorithm>
#include <string_view>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/aminmax.h>

namespace forebay::worker {

namespace {

struct Operator {
  std::string_view name;  // as base_name
  PartialWrites writes;
};

// Operators whose kernels find a bad value only when they come to it. A copy is cheap beside a decomposition; where numbers lead into a tensor
// that may be far larger than they are many, they are looked at first.
constexpr Operator kOperators[] = {
    {"_index_put_impl", PartialWrites::kByIndices}, {"index_put", PartialWrites::kByIndices}, {"index", PartialWrites::kByIndices},
    {"gather", PartialWrites::kByIndex},            {"index_add", PartialWrites::kByIndex},   {"index_copy", PartialWrites::kByIndex},
    {"index_fill", PartialWrites::kByIndex},        {"index_reduce", PartialWrites::kByIndex}, {"index_select", PartialWrites::kByIndex},
    {"scatter", PartialWrites::kByIndex},           {"scatter_add", PartialWrites::kByIndex}, {"scatter_reduce", PartialWrites::kByIndex},
    {"put", PartialWrites::kByPlace},               {"take", PartialWrites::kByPlace},        {"bernoulli", PartialWrites::kByValue},
    {"bincount", PartialWrites::kByValue},          {"binomial", PartialWrites::kByValue},    {"cholesky", PartialWrites::kByValue},
    {"cholesky_inverse", PartialWrites::kByValue},  {"cholesky_solve", PartialWrites::kByValue}, {"embedding_renorm", PartialWrites::kByValue},
    {"histc", PartialWrites::kByValue},             {"histogram", PartialWrites::kByValue},   {"lu_solve", PartialWrites::kByValue},
    {"lu_unpack", PartialWrites::kByValue},         {"masked_scatter", PartialWrites::kByValue}, {"max_unpool2d", PartialWrites::kByValue},
    {"max_unpool3d", PartialWrites::kByValue},      {"multi_margin_loss", PartialWrites::kByValue}, {"multilabel_margin_loss_forward", PartialWrites::kByValue},
    {"multinomial", PartialWrites::kByValue},       {"nll_loss2d_backward", PartialWrites::kByValue}, {"nll_loss2d_forward", PartialWrites::kByValue},
    {"nll_loss_backward", PartialWrites::kByValue}, {"nll_loss_forward", PartialWrites::kByValue}, {"normal", PartialWrites::kByValue},
    {"ormqr", PartialWrites::kByValue},             {"poisson", PartialWrites::kByValue},     {"triangular_solve", PartialWrites::kByValue},
};

bool is_written(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

bool lead_out(const at::Tensor& numbers, int64_t size) {
  if (!numbers.defined() || numbers.numel() == 0) return false;
  if (!c10::isIntegralType(numbers.scalar_type(), false)) return true;
  const auto [least, most] = at::aminmax(numbers);
  return least.item().toLong() < -size || most.item().toLong() >= size;
}

bool index_leads_out(const torch::jit::Stack& stack) {
  const at::Tensor& self = stack[0].toTensor();
  if (self.dim() == 0) return true;
  const int64_t dim = stack[1].toInt();
  return lead_out(stack[2].toTensor(), self.size(dim));
}

bool is_mask(const at::Tensor& tensor) { return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte; }

bool indices_lead_out(const torch::jit::Stack& stack) {
  const at::Tensor& self = stack[0].toTensor();
  int64_t dim = 0;
  for (const c10::IValue& item : stack[1].toListRef()) {
    const at::Tensor index = item.isNone() ? at::Tensor() : item.toTensor();
    if (dim >= self.dim()) return true;
    if (!index.defined()) {
      ++dim;
    } else if (is_mask(index)) {
      dim += index.dim();
    } else if (lead_out(index, self.size(dim++))) {
      return true;
    }
  }
  return false;
}

// Numbers are looked at before anything is drawn, so that a draw into most of the device's memory needs no copy of it.
bool draws_by_numbers(const Plan& plan, std::string_view name) {
  if (name != "normal" && name != "bernoulli") return false;
  const auto is_tensor = [](const ArgumentPlan& argument) { return argument.tag == wire::Tag::kTensor || argument.tag == wire::Tag::kScalarTensor; };
  return std::count_if(plan.arguments.begin(), plan.arguments.end(), is_tensor) == 1;
}

bool may_fail(PartialWrites writes, const torch::jit::Stack& stack) {
  switch (writes) {
    case PartialWrites::kByIndex:
      return index_leads_out(stack);
    case PartialWrites::kByIndices:
      return indices_lead_out(stack);
    case PartialWrites::kByPlace:
      return lead_out(stack[1].toTensor(), stack[0].toTensor().numel());
    default:
      return true;
  }
}

}  // namespace

void note_partial_writes(Plan& plan) {
  const auto& schema = plan.op.schema();
  if (std::none_of(schema.arguments().begin(), schema.arguments().end(), is_written)) return;
  const auto name = base_name(plan);
  if (draws_by_numbers(plan, name)) return;
  if (name.starts_with("linalg_") || name.starts_with("_linalg_")) {
    plan.partial_writes = PartialWrites::kByValue;
    return;
  }
  const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators), [&](const Operator& known) { return known.name == name; });
  if (found != std::end(kOperators)) plan.partial_writes = found->writes;
}

void Rollback::keep(const Plan& plan, const torch::jit::Stack& stack) {
  if (!may_fail(plan.partial_writes, stack)) return;
  const auto& arguments = plan.op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (is_written(arguments[index]) && stack[index].isTensor()) keep(stack[index].toTensor());
  }
}

void Rollback::keep(const at::Tensor& tensor) {
  if (tensor.defined()) kept_.emplace_back(tensor, tensor.clone());
}

Rollback::~Rollback() {
  for (const auto& [tensor, copy] : kept_) {
    try {
      if (tensor.sizes() == copy.sizes()) tensor.copy_(copy);
    } catch (const std::exception&) {  // the failure that is on its way says what there is to say
    }
  }
}

}  // namespace forebay::worker
