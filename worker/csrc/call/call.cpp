#include "call/call.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include "base/dtypes.h"
#include "base/memory.h"
#include "base/settings.h"
#include "call/bounds.h"
#include "call/ranges.h"
#include "call/rollback.h"
#include "call/sparse.h"

namespace forebay::worker {

namespace {

using wire::OutputTag;
using wire::Tag;

c10::Scalar number(const uint64_t*& word, c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) {
    const double real = wire::bits_value(*word++);
    return c10::complex<double>(real, wire::bits_value(*word++));
  }
  if (c10::isFloatingType(dtype)) return wire::bits_value(*word++);
  return wire::zigzag_value(*word++);
}

c10::Scalar scalar(const uint64_t*& word, Tag tag) {
  switch (tag) {
    case Tag::kScalarDouble:
      return wire::bits_value(*word++);
    case Tag::kScalarInt:
      return wire::zigzag_value(*word++);
    case Tag::kScalarBool:
      return *word++ != 0;
    default:
      return number(word, c10::ScalarType::ComplexDouble);
  }
}

void store(const at::Tensor& target, const c10::Scalar& value) {
  switch (target.scalar_type()) {
    case c10::ScalarType::Double:
      *target.mutable_data_ptr<double>() = value.toDouble();
      return;
    case c10::ScalarType::Float:
      *target.mutable_data_ptr<float>() = static_cast<float>(value.toDouble());
      return;
    case c10::ScalarType::Long:
      *target.mutable_data_ptr<int64_t>() = value.toLong();
      return;
    default:
      target.fill_(value);
  }
}

// Has a call computed under the program's default dtype, which decides what PyTorch makes of whole numbers and of numbers in Python.
class DefaultDtype {
 public:
  explicit DefaultDtype(c10::ScalarType dtype) : differs_(dtype != c10::ScalarType::Float) {
    if (differs_) [[unlikely]] c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() {
    if (differs_) [[unlikely]] c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
  }
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;

 private:
  const bool differs_;
};

bool is_plain(const at::Tensor& tensor, const Device& device) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return tensor.layout() == c10::kStrided && impl->has_storage() && !tensor.is_quantized() && !tensor.is_nested() &&
         !tensor._is_zerotensor() && tensor.device().type() == device.where().type();
}

// Whether nobody but the result holds its storage, so that it can become the session's.
bool is_sole_owner(const at::Tensor& tensor) { return tensor.use_count() == 1 && tensor.storage().use_count() == 1; }

bool same_layout(const at::Tensor& tensor, const Layout& layout) {
  if (tensor.is_conj() != layout.conj || tensor.is_neg() != layout.neg) return false;
  if (layout.numel == 0) return true;
  const auto strides = tensor.strides();
  for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
    if (layout.sizes[dim] != 1 && strides[dim] != layout.strides[dim]) return false;
  }
  return true;
}

// Whether a result may be given in a type that the client has told the program of. What PyTorch says of devices is not always what
// this device's kernels do: they differ in precision, or in how wide an integer they give.
bool converts(c10::ScalarType from, c10::ScalarType to) {
  if (from == to) return true;
  if (c10::isFloatingType(from)) return c10::isFloatingType(to) && !c10::isFloat8Type(to);
  if (c10::isComplexType(from)) return c10::isComplexType(to);
  return c10::isIntegralType(from, true) && c10::isIntegralType(to, false) && c10::promoteTypes(from, to) == to;
}

std::string text_of(c10::IntArrayRef sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

[[noreturn]] void unpredicted(const std::string& what) {
  throw CommandError(wire::FailureCode::kGeometry, "the result is not what the client predicted: " + what);
}

// Such an answer would end the session of a client that keeps to the stream's limits.
[[noreturn]] void beyond_the_stream(const std::string& what) {
  throw CommandError(wire::FailureCode::kGeometry, "the result is beyond what the command stream carries: " + what);
}

}  // namespace

void Caller::check(Plan& plan, const wire::Words& words) {
  here_ = false;
  fill(plan, words);
}

void Caller::take_results(const Plan& plan) {
  here_ = false;
  storages_.check_room(plan.new_bytes);
  next_new_ = 0;
  c10::IValue nothing;
  for (const auto& output : plan.outputs) take(output, nothing);
  stack_.clear();
}

void Caller::bind(Plan& plan, const wire::Words& words) {
  here_ = true;
  fill(plan, words);
}

void Caller::fill(Plan& plan, const wire::Words& words) {
  const uint64_t* word = words.data();
  stack_.clear();
  tensors_.clear();
  new_ids_.clear();
  told_ids_.clear();
  unusable_.reset();
  trouble_ = nullptr;
  for (auto& argument : plan.arguments) stack_.push_back(value(argument, word));
  bind_outputs(plan.outputs, word);
  if (!plan.random) return;
  seed_ = *word++;
  counter_ = *word++;
}

c10::IValue Caller::value(ArgumentPlan& argument, const uint64_t*& word) {
  switch (argument.tag) {
    case Tag::kTensor:
      return tensor(argument, word);
    case Tag::kScalarTensor:
      return scalar_tensor(argument, word);
    case Tag::kDouble:
      return wire::bits_value(*word++);
    case Tag::kScalarDouble:
    case Tag::kScalarInt:
    case Tag::kScalarBool:
    case Tag::kScalarComplex:
      return scalar(word, argument.tag);
    case Tag::kTensorList:
    case Tag::kScalarList:
    case Tag::kDoubleList:
    case Tag::kSparse:  // its parts, until the call runs
      return list(argument, word);
    case Tag::kNone:
      tensors_.push_back({nullptr, nullptr, 0, nullptr});
      return argument.prototype;
    case Tag::kGenerator:
      return {};  // set when the call runs
    default:
      return argument.prototype;
  }
}

c10::IValue Caller::tensor(const ArgumentPlan& argument, const uint64_t*& word) {
  Entry& entry = storages_.at(*word++);
  if (*word > static_cast<uint64_t>(wire::kStorageBytesMax)) throw wire::WireError("an offset is " + std::to_string(*word) + ", at most " + std::to_string(wire::kStorageBytesMax) + " is accepted");
  const auto offset = static_cast<int64_t>(*word++);
  const Layout& layout = *argument.layout;
  tensors_.push_back({&entry, &layout, offset, nullptr});
  const __int128 last = (static_cast<__int128>(offset) + layout.span) * layout.item_bytes;
  if (entry.cause() || (entry.shortfall() && last > entry.bytes())) {
    if (!unusable_) unusable_ = entry.cause() ? entry.cause() : entry.shortfall();
    return at::Tensor();
  }
  if (last > entry.bytes()) {
    throw wire::WireError("a tensor reaches to byte " + std::to_string(static_cast<int64_t>(last)) + " of a storage of " +
                          std::to_string(entry.bytes()) + " bytes");
  }
  if (!runs_here() || trouble_) return at::Tensor();
  try {
    const at::Tensor& view = entry.view(device_, layout, offset);
    tensors_.back().impl = view.unsafeGetTensorImpl();
    return view;
  } catch (const c10::Error&) {
    trouble_ = std::current_exception();
    return at::Tensor();
  }
}

c10::IValue Caller::scalar_tensor(ArgumentPlan& argument, const uint64_t*& word) {
  const c10::Scalar value = number(word, argument.dtype);
  tensors_.push_back({nullptr, nullptr, 0, nullptr});
  if (!runs_here() || trouble_) return at::Tensor();
  try {
    if (!argument.scalar.defined() || !is_sole_owner(argument.scalar)) {
      argument.scalar = at::empty({}, at::TensorOptions().dtype(argument.dtype).device(at::kCPU));
      argument.scalar.storage().unsafeGetStorageImpl()->set_resizable(false);
      argument.scalar.unsafeGetTensorImpl()->set_wrapped_number(argument.wrapped);
    }
    store(argument.scalar, value);
    tensors_.back().impl = argument.scalar.unsafeGetTensorImpl();
    return argument.scalar;
  } catch (const c10::Error&) {
    trouble_ = std::current_exception();
    return at::Tensor();
  }
}

c10::IValue Caller::list(ArgumentPlan& argument, const uint64_t*& word) {
  if (argument.tag == Tag::kDoubleList) {
    c10::List<double> values;
    values.reserve(argument.count);
    for (size_t index = 0; index < argument.count; ++index) values.push_back(wire::bits_value(*word++));
    return values;
  }
  if (argument.tag == Tag::kScalarList) {
    c10::List<c10::Scalar> values;
    values.reserve(argument.items.size());
    for (auto& item : argument.items) values.push_back(scalar(word, item.tag));
    return values;
  }
  if (argument.optional_items) {
    c10::List<std::optional<at::Tensor>> values;
    values.reserve(argument.items.size());
    for (auto& item : argument.items) {
      auto item_value = value(item, word);
      values.push_back(item_value.isNone() ? std::nullopt : std::optional(std::move(item_value).toTensor()));
    }
    return values;
  }
  c10::List<at::Tensor> values;
  values.reserve(argument.items.size());
  for (auto& item : argument.items) values.push_back(value(item, word).toTensor());
  return values;
}

void Caller::bind_outputs(const std::vector<OutputPlan>& outputs, const uint64_t*& word) {
  for (const auto& output : outputs) {
    if (output.tag == OutputTag::kNew) {
      const uint64_t id = *word++;
      if (target_ == nullptr) storages_.check_new(id);
      new_ids_.push_back(id);
    } else if (output.tag == OutputTag::kList) {
      bind_outputs(output.items, word);
    }
  }
}

void Caller::execute(Plan& plan) {
  if (trouble_) std::rethrow_exception(trouble_);
  if (!plan.breach.empty()) throw CommandError(wire::FailureCode::kOperator, plan.breach);
  storages_.check_room(plan.new_bytes);
  if (plan.random) {
    const auto generator = device_.seeded_generator(seed_, counter_);
    for (size_t index = 0; index < plan.arguments.size(); ++index) {
      if (plan.arguments[index].tag == Tag::kGenerator) stack_[index] = generator;
    }
  }
  if (!plan.sparse.empty()) assemble_sparse(plan);
  for (const size_t index : plan.apart) stack_[index] = stack_[index].toTensor().contiguous();
  if (!plan.bounds.empty()) check_bounds(plan, stack_);
  if (!plan.ranges.empty()) check_ranges(plan);
  if (!device_.is_host()) forget_numbers(plan);
  Rollback rollback(plan, stack_);
  {
    const Running::Call call(running_, plan.op.schema().name());
    const auto alone = plan.is_short ? std::make_optional<OneThread>() : std::nullopt;
    const DefaultDtype as_the_programs(plan.default_dtype);
    const at::AutoGradMode looked_on(plan.keeps_places || at::GradMode::is_enabled());
    if (plan.keeps_places) stack_[1] = stack_[1].toTensor().detach().set_requires_grad(true);
    plan.op.callBoxed(stack_);
  }
  rollback.forget();
  check_mutated(plan);
  next_new_ = 0;
}

void Caller::assemble_sparse(const Plan& plan) {
  const auto is_written = [&](size_t part) {
    return std::any_of(plan.mutated.begin(), plan.mutated.end(), [&](size_t index) { return tensors_[index].entry == tensors_[part].entry; });
  };
  for (const auto& sparse : plan.sparse) {
    auto parts = stack_[sparse.argument].toTensorVector();
    for (size_t part = 0; part < parts.size(); ++part) {
      if (is_written(sparse.first_tensor + part)) parts[part] = parts[part].clone();  // or what was checked would change meanwhile
    }
    stack_[sparse.argument] = sparse_tensor(plan.arguments[sparse.argument], std::move(parts), device_);
  }
}

void Caller::check_ranges(const Plan& plan) {
  for (const auto& range : plan.ranges) {
    const TensorArgument& argument = tensors_[range.tensor];
    if (argument.impl == nullptr || argument.entry == nullptr) continue;
    const c10::IValue& given = stack_[range.argument];
    check_range(plan, range, argument, range.item ? given.toListRef()[*range.item].toTensor() : given.toTensor());
  }
}

void Caller::hold_to_range(const Plan& plan, const NumberRange& range, Entry& entry, const Layout& layout, int64_t offset) const {
  const at::Tensor numbers = entry.view(device_, layout, offset);
  check_range(plan, range, {&entry, &layout, offset, numbers.unsafeGetTensorImpl()}, numbers);
}

void Caller::check_range(const Plan& plan, const NumberRange& range, const TensorArgument& argument, const at::Tensor& numbers) const {
  const Interval* known = argument.entry->numbers(*argument.layout, argument.offset, range.except);
  if (known != nullptr) return worker::hold_to_range(plan, range, *known);
  TORCH_CHECK(!device_.is_recording(), "it is given numbers that its segment computes");
  const Interval found = interval_of(on_host(argument).value_or(numbers), range.except);
  argument.entry->note_numbers(*argument.layout, argument.offset, range.except, found);
  worker::hold_to_range(plan, range, found);
}

// The same numbers, as the client sent them.
std::optional<at::Tensor> Caller::on_host(const TensorArgument& argument) {
  const Layout& layout = *argument.layout;
  const auto& bytes = argument.entry->uploaded();
  if (static_cast<int64_t>(bytes.size()) < (argument.offset + layout.span) * layout.item_bytes) return std::nullopt;
  auto* data = const_cast<uint8_t*>(bytes.data()) + argument.offset * layout.item_bytes;
  return at::from_blob(data, layout.sizes, layout.strides, at::TensorOptions().dtype(layout.type));
}

void Caller::forget_numbers(const Plan& plan) {
  for (const size_t index : plan.mutated) {
    if (tensors_[index].entry != nullptr) tensors_[index].entry->forget_numbers();
  }
}

void Caller::note_made(const Plan& plan, const Interval& made) {
  const OutputPlan& output = plan.outputs[plan.made->output];
  if (output.tag == OutputTag::kSame) {
    const TensorArgument& argument = tensors_[output.same];
    if (argument.entry != nullptr) argument.entry->note_numbers(*argument.layout, argument.offset, std::nullopt, made);
  } else if (output.tag == OutputTag::kNew) {
    const auto is_new = [](const OutputPlan& one) { return one.tag == OutputTag::kNew; };
    const auto before = std::count_if(plan.outputs.begin(), plan.outputs.begin() + static_cast<std::ptrdiff_t>(plan.made->output), is_new);
    storages_.at(new_ids_[static_cast<size_t>(before)]).note_numbers(*output.layout, 0, std::nullopt, made);
  }
}

void Caller::run(Plan& plan) {
  if (!device_.computes()) return take_results(plan);
  const std::optional<Interval> made = interval_made(plan, stack_);
  execute(plan);
  for (size_t index = 0; index < plan.outputs.size(); ++index) take(plan.outputs[index], stack_[index]);
  stack_.clear();
  if (made && target_ == nullptr) note_made(plan, *made);
}

void Caller::rerun(Plan& plan, const wire::Words& words, const Target& target) {
  target_ = &target;
  try {
    bind(plan, words);
    for (const size_t index : plan.mutated) {  // what it wrote to beside its results stays as it is
      if (plan.new_storages > 0 && stack_[index].isTensor()) stack_[index] = stack_[index].toTensor().clone();
    }
    run(plan);
  } catch (...) {
    stack_.clear();
    target_ = nullptr;
    throw;
  }
  target_ = nullptr;
}

torch::jit::Stack Caller::results(Plan& plan) {
  execute(plan);
  return std::exchange(stack_, {});
}

void Caller::run_and_tell(Plan& plan, uint64_t first_storage, wire::Writer& told) {
  next_told_ = first_storage;
  told.varint(plan.outputs.size());
  if (!device_.computes()) {
    storages_.check_room(plan.new_bytes);
    next_new_ = 0;
    stack_.assign(plan.outputs.size(), c10::IValue());
    for (size_t index = 0; index < plan.outputs.size(); ++index) {
      if (plan.op.schema().returns()[index].type()->kind() == c10::TypeKind::IntType) stack_[index] = int64_t{0};
    }
  } else {
    execute(plan);
  }
  for (size_t index = 0; index < plan.outputs.size(); ++index) tell(plan.outputs[index], stack_[index], told);
  stack_.clear();
}

void Caller::skip(const Plan& plan, const wire::Words& words) const {
  skip_question(plan, words);
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kNew) storages_.check_new(words[index]);
  }
}

void Caller::skip_question(const Plan& plan, const wire::Words& words) const {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kStorage) storages_.at(words[index]);
  }
}

void Caller::withdraw() {
  stack_.clear();
  for (const uint64_t id : new_ids_) storages_.withdraw(id);
  for (const uint64_t id : told_ids_) storages_.free(id);
  told_ids_.clear();
}

// An operator may have changed the geometry of a tensor that it writes to; the tensors are kept for later calls.
void Caller::check_mutated(const Plan& plan) const {
  for (const size_t index : plan.mutated) {
    const auto& argument = tensors_[index];
    if (argument.impl == nullptr) continue;
    const bool same = argument.impl->sizes() == c10::IntArrayRef(argument.layout->sizes) &&
                      argument.impl->strides() == c10::IntArrayRef(argument.layout->strides) &&
                      argument.impl->storage_offset() == argument.offset && argument.impl->dtype() == argument.layout->type &&
                      argument.impl->unsafe_storage().is_alias_of(argument.entry->memory());
    if (same) continue;
    argument.entry->forget_views();
    unpredicted("the operator gave a tensor that it writes to other sizes, strides or storage");
  }
}

void Caller::take(const OutputPlan& output, c10::IValue& result) {
  switch (output.tag) {
    case OutputTag::kNew:
      return take_new(output, result);
    case OutputTag::kSame:
      return take_same(output, result);
    case OutputTag::kList: {
      if (!runs_here()) {
        for (const auto& item : output.items) take(item, result);
        return;
      }
      auto tensors = std::move(result).toTensorList();
      if (tensors.size() != output.items.size()) {
        unpredicted("a list of " + std::to_string(tensors.size()) + " tensors, not " + std::to_string(output.items.size()));
      }
      for (size_t index = 0; index < tensors.size(); ++index) {
        c10::IValue item(tensors.extract(index));
        take(output.items[index], item);
      }
      return;
    }
    default:
      result = c10::IValue();
      return;
  }
}

void Caller::take_new(const OutputPlan& output, c10::IValue& result) {
  const Layout& layout = *output.layout;
  const uint64_t id = new_ids_[next_new_++];
  at::Tensor tensor;
  if (result.isTensor()) tensor = std::move(result).toTensor();
  if (target_ == nullptr && (!runs_here() || (!tensor.defined() && layout.numel == 0))) {
    storages_.insert(id, output.storage_bytes);
    return;
  }
  Entry* const wanted = target_ == nullptr ? nullptr : (*target_)(id);
  if (target_ != nullptr && (wanted == nullptr || (!tensor.defined() && layout.numel == 0))) return;
  if (!tensor.defined()) unpredicted("no tensor");
  if (!converts(tensor.scalar_type(), layout.dtype) || tensor.sizes() != c10::IntArrayRef(layout.sizes)) {
    unpredicted(std::string(c10::toString(tensor.scalar_type())) + text_of(tensor.sizes()) + ", not " + c10::toString(layout.dtype) +
                text_of(layout.sizes));
  }
  const bool adopted = is_plain(tensor, device_) && is_sole_owner(tensor) && tensor.storage_offset() == 0 && tensor.scalar_type() == layout.dtype &&
                       same_layout(tensor, layout) &&
                       static_cast<int64_t>(tensor.storage().nbytes()) == output.storage_bytes;
  Entry& entry = wanted == nullptr ? storages_.insert(id, output.storage_bytes) : *wanted;
  if (adopted) {
    const bool exact = tensor.strides() == c10::IntArrayRef(layout.strides) && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return entry.adopt(tensor, exact ? layout.id : 0);
  }
  const bool gapless = layout.span == layout.numel && layout.span_bytes() == output.storage_bytes;
  if (gapless) entry.touch_unwritten(device_);
  entry.view(device_, layout, 0).copy_(tensor);
}

void Caller::take_same(const OutputPlan& output, const c10::IValue& result) const {
  if (!runs_here()) return;
  const auto& argument = tensors_[output.same];
  if (!result.isTensor() || !result.toTensor().defined() || argument.impl == nullptr) unpredicted("not the argument itself");
  const at::Tensor& tensor = result.toTensor();
  if (tensor.unsafeGetTensorImpl() == argument.impl) return;
  const bool alias = argument.layout != nullptr && is_plain(tensor, device_) && tensor.storage().is_alias_of(argument.entry->memory()) &&
                     tensor.storage_offset() == argument.offset && tensor.scalar_type() == argument.layout->dtype &&
                     tensor.sizes() == c10::IntArrayRef(argument.layout->sizes) && same_layout(tensor, *argument.layout);
  if (!alias) unpredicted("not the argument itself");
}

void Caller::tell(const OutputPlan& output, c10::IValue& result, wire::Writer& told) {
  if (output.tag == OutputTag::kSame) {
    take_same(output, result);
    told.tag(OutputTag::kSame);
    return told.varint(output.same);
  }
  if (result.isTensor()) return tell_tensor(output, std::move(result).toTensor(), told);
  if (result.isTensorList()) {
    auto tensors = std::move(result).toTensorList();
    if (output.tag == OutputTag::kList && tensors.size() != output.items.size()) unpredicted("a list of another length");
    if (tensors.size() > wire::kItemsMax) beyond_the_stream("a list of " + std::to_string(tensors.size()) + " tensors");
    told.tag(OutputTag::kList);
    told.varint(tensors.size());
    for (size_t index = 0; index < tensors.size(); ++index) {
      c10::IValue item(tensors.extract(index));
      tell(output.tag == OutputTag::kList ? output.items[index] : output, item, told);
    }
  } else if (result.isInt()) {
    told.tag(OutputTag::kInt);
    told.zigzag(result.toInt());
  } else if (result.isDouble()) {
    told.tag(OutputTag::kDouble);
    told.f64(result.toDouble());
  } else if (result.isBool()) {
    told.tag(OutputTag::kBool);
    told.u8(result.toBool());
  } else if (result.isComplexDouble()) {
    told.tag(OutputTag::kComplex);
    told.f64(result.toComplexDouble().real());
    told.f64(result.toComplexDouble().imag());
  } else if (!device_.computes()) {
    throw CommandError(wire::FailureCode::kUnsupported, "a null device computes nothing, so it cannot tell this operator's result");
  } else {
    told.tag(OutputTag::kNone);
  }
}

void Caller::tell_sparse(const OutputPlan& output, at::Tensor tensor, wire::Writer& told) {
  if (!wire::carries_sparse_sizes(tensor.sizes())) beyond_the_stream("sizes " + text_of(tensor.sizes()));
  told.tag(OutputTag::kSparse);
  put_sparse_head(tensor, told);
  auto parts = parts_of(tensor);
  tensor.reset();  // so that nobody else holds them
  for (auto& part : parts) tell_tensor(output, std::move(part), told);
}

// An unknown tensor is told as a dense one in a storage of its own.
void Caller::tell_tensor(const OutputPlan& output, at::Tensor tensor, wire::Writer& told) {
  if (output.tag == OutputTag::kNew) {
    c10::IValue result(std::move(tensor));
    const uint64_t id = new_ids_[next_new_];
    take_new(output, result);
    told.tag(OutputTag::kNew);
    told.varint(id);
    wire::put_geometry(told, static_cast<uint8_t>(output.layout->dtype), 0, output.layout->sizes, output.layout->strides);
    return told.varint(static_cast<uint64_t>(output.storage_bytes));
  }
  if (!tensor.defined()) return told.tag(OutputTag::kNone);
  if (is_sparse(tensor)) return tell_sparse(output, std::move(tensor), told);
  if (!is_supported(static_cast<uint8_t>(tensor.scalar_type())) || tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.is_nested()) {
    unpredicted("a tensor that the command stream cannot carry");
  }
  const bool adopted = is_plain(tensor, device_) && is_sole_owner(tensor) && tensor.storage_offset() == 0 && !tensor.is_conj() &&
                       !tensor.is_neg() && tensor.is_non_overlapping_and_dense() &&
                       static_cast<int64_t>(tensor.storage().nbytes()) == tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  if (!adopted) {
    auto copy = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(device_.where()));
    copy.copy_(tensor);
    tensor = std::move(copy);
  }
  if (!wire::carries_geometry(tensor.sizes(), tensor.strides())) {
    beyond_the_stream("sizes " + text_of(tensor.sizes()) + " and strides " + text_of(tensor.strides()));
  }
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  storages_.check_room(bytes);
  const uint64_t id = next_told_++;
  storages_.check_new(id);
  storages_.insert(id, bytes).adopt(tensor, 0);
  told_ids_.push_back(id);
  told.tag(OutputTag::kNew);
  told.varint(id);
  wire::put_geometry(told, static_cast<uint8_t>(tensor.scalar_type()), 0, tensor.sizes(), tensor.strides());
  told.varint(static_cast<uint64_t>(bytes));
}

}  // namespace forebay::worker
