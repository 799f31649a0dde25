#include "call/planner.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <forebay/default_dtype.h>

#include "base/dtypes.h"
#include "call/contract.h"
#include "call/ranges.h"
#include "call/rollback.h"
#include "call/short_calls.h"
#include "call/sparse.h"

namespace forebay::worker {

namespace {

using c10::TypeKind;
using wire::Tag;

// Builds one plan; holds what all its arguments need.
class Planner {
 public:
  Planner(c10::OperatorHandle op, const Device& device, Layouts& layouts)
      : schema_(op.schema()), device_(device), layouts_(layouts), plan_(std::make_unique<Plan>(op)) {}

  std::unique_ptr<Plan> make(const wire::Template& source) {
    plan_->random = source.flags & wire::kTemplateRandom;
    plan_->default_dtype = default_dtype(source.flags);
    const auto& arguments = schema_.arguments();
    if (source.arguments.size() != arguments.size()) {
      refuse("has " + std::to_string(source.arguments.size()) + " arguments, its operator takes " + std::to_string(arguments.size()));
    }
    updates_statistics_ = updates_statistics(source);
    for (size_t index = 0; index < arguments.size(); ++index) add_argument(source.arguments[index], arguments[index]);
    if (source.outputs.size() != schema_.returns().size()) {
      refuse("has " + std::to_string(source.outputs.size()) + " outputs, its operator gives " + std::to_string(schema_.returns().size()));
    }
    for (size_t index = 0; index < source.outputs.size(); ++index) {
      plan_->outputs.push_back(output(source.outputs[index], schema_.returns()[index].type()));
    }
    if (plan_->random) plan_->words.insert(plan_->words.end(), {wire::Word::kBits, wire::Word::kCounter});
    return std::move(plan_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw wire::WireError("a template of " + schema_.name() + " " + what); }

  [[noreturn]] void misfit(const c10::Argument& argument) const {
    refuse("gives argument " + argument.name() + " a value that is not " + argument.type()->str());
  }

  c10::ScalarType default_dtype(uint8_t flags) const {
    const uint8_t number = wire::default_dtype_of(flags);
    const auto dtype = static_cast<c10::ScalarType>(number);
    if (!is_supported(number) || !c10::isFloatingType(dtype)) refuse("is made under the default dtype " + std::to_string(number) + ", which is no floating one");
    return dtype;
  }

  void add_argument(const wire::Argument& source, const c10::Argument& argument) {
    const bool writes = (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) || (updates_statistics_ && is_statistic(argument.name()));
    const size_t first = plan_->tensors;
    check_number(source, argument);
    if (source.tag == Tag::kSparse) plan_->sparse.push_back({plan_->arguments.size(), first});
    plan_->arguments.push_back(bind(source, *argument.type(), argument));
    if (!writes) return;
    check_written(source, argument);
    for (size_t index = first; index < plan_->tensors; ++index) plan_->mutated.push_back(index);
  }

  static bool is_statistic(const std::string& name) { return name == "running_mean" || name == "running_var"; }

  // Whether it is a batch norm in training, whose schema does not say that it writes to the running statistics.
  bool updates_statistics(const wire::Template& source) const {
    const auto training = schema_.argumentIndexWithName("training");
    return training && static_cast<size_t>(*training) < source.arguments.size() && source.arguments[static_cast<size_t>(*training)].flag;
  }

  // What an operator writes to must have a storage of the session.
  void check_written(const wire::Argument& source, const c10::Argument& argument) const {
    if (source.tag == Tag::kScalarTensor || source.tag == Tag::kSparse) misfit(argument);
    for (const auto& item : source.items) {
      if (item.tag == Tag::kScalarTensor) misfit(argument);
    }
  }

  // Integers that PyTorch would use unchecked as numbers of a dtype, a layout or a memory format.
  void check_number(const wire::Argument& source, const c10::Argument& argument) const {
    if (source.tag != Tag::kInt) return;
    const c10::Type* type = argument.real_type().get();
    if (type->kind() == TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType().get();
    const int64_t value = source.integer;
    switch (type->kind()) {
      case TypeKind::ScalarTypeType:
        if (value < 0 || value > 255 || !is_supported(static_cast<uint8_t>(value))) refuse("names dtype " + std::to_string(value) + ", which is not served");
        break;
      case TypeKind::LayoutType:
        if (value != static_cast<int64_t>(c10::Layout::Strided)) refuse("names layout " + std::to_string(value) + ", only strided tensors are served");
        break;
      case TypeKind::MemoryFormatType:
        if (value < 0 || value > static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d)) refuse("names memory format " + std::to_string(value));
        break;
      default:
        break;
    }
  }

  ArgumentPlan bind(const wire::Argument& source, const c10::Type& type, const c10::Argument& argument) {
    ++plan_->items;
    ArgumentPlan plan;
    plan.tag = source.tag;
    const bool optional = type.kind() == TypeKind::OptionalType;
    const c10::Type* inner = optional ? type.expectRef<c10::OptionalType>().getElementType().get() : &type;
    if (source.tag == Tag::kNone) {
      if (!optional && type.kind() != TypeKind::TensorType) misfit(argument);
      if (!optional) plan.prototype = c10::IValue(at::Tensor());
      ++plan_->tensors;
      return plan;
    }
    if (!fill_scalar(plan, source, inner->kind()) && !fill_list(plan, source, *inner, argument)) misfit(argument);
    return plan;
  }

  bool fill_scalar(ArgumentPlan& plan, const wire::Argument& source, TypeKind kind) {
    switch (source.tag) {
      case Tag::kTensor:
        plan.tag = source.tag;
        plan.layout = layouts_.intern(source.geometry);
        plan_->given_bytes = std::min(wire::kStorageBytesMax, plan_->given_bytes + plan.layout->span_bytes());
        ++plan_->tensors;
        bound({wire::Word::kStorage, wire::Word::kNumber});
        return kind == TypeKind::TensorType;
      case Tag::kSparse:
        plan.sparse = static_cast<c10::Layout>(source.layout);
        plan.coalesced = source.flag;
        plan.sizes = source.list;
        for (const auto& part : source.items) fill_scalar(plan.items.emplace_back(), part, kind);
        plan.layout = sparse_layout(plan);
        return kind == TypeKind::TensorType;
      case Tag::kScalarTensor:
        if (!is_supported(source.dtype)) refuse("names dtype " + std::to_string(source.dtype) + ", which is not served");
        plan.dtype = static_cast<c10::ScalarType>(source.dtype);
        plan.wrapped = source.flag;
        ++plan_->tensors;
        bound_number(plan.dtype);
        return kind == TypeKind::TensorType;
      case Tag::kInt:
        plan.prototype = c10::IValue(source.integer);
        return kind == TypeKind::IntType;
      case Tag::kBool:
        plan.prototype = c10::IValue(source.flag);
        return kind == TypeKind::BoolType;
      case Tag::kString:
        plan.prototype = c10::IValue(source.text);
        return kind == TypeKind::StringType;
      case Tag::kDevice:
        plan.prototype = c10::IValue(source.flag ? device_.where() : c10::Device(c10::kCPU));
        return kind == TypeKind::DeviceObjType;
      case Tag::kDouble:
        bound({wire::Word::kBits});
        return kind == TypeKind::FloatType;
      case Tag::kScalarDouble:
      case Tag::kScalarInt:
      case Tag::kScalarBool:
      case Tag::kScalarComplex:
        bound_scalar(source.tag);
        return kind == TypeKind::NumberType;
      case Tag::kGenerator:
        if (!plan_->random) refuse("passes a generator, but is not marked as random");
        return kind == TypeKind::GeneratorType;
      default:
        return false;
    }
  }

  void bound(std::initializer_list<wire::Word> words) { plan_->words.insert(plan_->words.end(), words); }

  void bound_number(c10::ScalarType dtype) {
    if (c10::isComplexType(dtype)) return bound({wire::Word::kBits, wire::Word::kBits});
    bound({c10::isFloatingType(dtype) ? wire::Word::kBits : wire::Word::kNumber});
  }

  void bound_scalar(Tag tag) {
    if (tag == Tag::kScalarComplex) return bound({wire::Word::kBits, wire::Word::kBits});
    if (tag == Tag::kScalarBool) return bound({wire::Word::kByte});
    bound({tag == Tag::kScalarDouble ? wire::Word::kBits : wire::Word::kNumber});
  }

  bool fill_list(ArgumentPlan& plan, const wire::Argument& source, const c10::Type& type, const c10::Argument& argument) {
    if (type.kind() != TypeKind::ListType) return false;
    const c10::Type& element = *type.expectRef<c10::ListType>().getElementType();
    switch (source.tag) {
      case Tag::kTensorList:
        plan.optional_items = element.kind() == TypeKind::OptionalType;
        if (!plan.optional_items && element.kind() != TypeKind::TensorType) return false;
        break;
      case Tag::kScalarList:
        if (element.kind() != TypeKind::NumberType) return false;
        break;
      case Tag::kIntList:
        plan.prototype = c10::IValue(source.list);
        return element.kind() == TypeKind::IntType;
      case Tag::kBoolList: {
        c10::List<bool> values;
        for (const int64_t value : source.list) values.push_back(value != 0);
        plan.prototype = c10::IValue(std::move(values));
        return element.kind() == TypeKind::BoolType;
      }
      case Tag::kDoubleList:
        plan.count = source.count;
        plan_->items += plan.count;
        plan_->words.insert(plan_->words.end(), plan.count, wire::Word::kBits);
        return element.kind() == TypeKind::FloatType;
      default:
        return false;
    }
    for (const auto& item : source.items) plan.items.push_back(bind(item, element, argument));
    return true;
  }

  OutputPlan output(const wire::Output& source, const c10::TypePtr& type) {
    ++plan_->items;
    OutputPlan plan;
    plan.tag = source.tag;
    const bool is_list = type->kind() == TypeKind::ListType;
    const bool is_tensor = type->kind() == TypeKind::TensorType;
    switch (source.tag) {
      case wire::OutputTag::kNew:
        plan.layout = layouts_.intern(source.geometry);
        plan.storage_bytes = source.storage_bytes;
        if (plan.layout->span_bytes() > source.storage_bytes) refuse("gives an output less storage than it spans");
        ++plan_->new_storages;
        plan_->words.push_back(wire::Word::kNew);
        plan_->new_bytes += source.storage_bytes;
        if (plan_->new_bytes > wire::kStorageBytesMax) refuse("makes more bytes than a storage may have");
        if (!is_tensor) refuse("gives an output that is not " + type->str());
        break;
      case wire::OutputTag::kNone:  // or a whole number that the client knows
        if (!is_tensor && type->kind() != TypeKind::IntType) refuse("gives an output that is not " + type->str());
        break;
      case wire::OutputTag::kSame:
        if (!is_tensor || source.same >= plan_->tensors) refuse("gives an output that is tensor argument " + std::to_string(source.same) + ", which does not exist");
        plan.same = static_cast<size_t>(source.same);
        break;
      case wire::OutputTag::kList:
        if (!is_list) refuse("gives an output that is not " + type->str());
        for (const auto& item : source.items) plan.items.push_back(output(item, type->expectRef<c10::ListType>().getElementType()));
        break;
      default:
        plan_->tells = true;
        break;
    }
    return plan;
  }

  const c10::FunctionSchema& schema_;
  const Device& device_;
  Layouts& layouts_;
  std::unique_ptr<Plan> plan_;
  bool updates_statistics_ = false;
};

}  // namespace

std::unique_ptr<Plan> make_plan(const wire::Template& source, c10::OperatorHandle op, const Device& device, Layouts& layouts) {
  auto plan = Planner(op, device, layouts).make(source);
  check_sparse_use(*plan);
  plan->breach = breach_of_contract(*plan);
  note_apart(*plan);
  plan->keeps_places = plan->op.schema().name() == "aten::_sparse_mm_reduce_impl";
  const bool host_computes = device.is_host() && device.computes();
  note_bounds(*plan, host_computes);
  if (host_computes) note_partial_writes(*plan);
  plan->is_short = host_computes && is_short(*plan);
  if (!device.is_host()) note_ranges(*plan);
  return plan;
}

}  // namespace forebay::worker
