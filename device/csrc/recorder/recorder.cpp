#include "recorder/recorder.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <utility>

#include "base/generator.h"
#include "base/locations.h"
#include "base/profile.h"
#include "base/python.h"
#include "base/settings.h"
#include "recorder/device_times.h"
#include "recorder/known_calls.h"
#include "recorder/out_arguments.h"
#include "recorder/sparse.h"
#include "recorder/template.h"
#include "runtime/storage.h"
#include "stream/stream.h"

namespace forebay {
namespace {

using torch::jit::Stack;
using wire::Command;
using wire::OutputTag;
using wire::Tag;

uint64_t hash_of(const std::vector<uint64_t>& key) {
  uint64_t hash = key.size();
  for (const uint64_t word : key) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

bool is_host_scalar(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.dim() == 0; }

[[noreturn]] void refuse_device(c10::DeviceIndex device, const at::Tensor& tensor) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", c10::Device(c10::kCUDA, device), " and ",
              tensor.device(), "!");
}

// Scanning: the key and the bindings, in one pass over the arguments.

constexpr uint64_t kDefaultDtypeWord = 0xff;  // where an argument's tag stands, and no tag

class Scanner {
 public:
  Scanner(const OperatorInfo& info, Scan& scan) : info_(info), scan_(scan), key_(scan.key) {}

  void scan(const Stack& stack) {
    key_.push_back(reinterpret_cast<uintptr_t>(&info_));
    if (scan_.default_dtype != at::kFloat) [[unlikely]] key_.push_back(kDefaultDtypeWord | static_cast<uint64_t>(scan_.default_dtype) << 8);
    for (size_t index = 0; index < stack.size(); ++index) argument(stack[index], info_.arguments[index]);
  }

 private:
  void bind(wire::Word kind, uint64_t word) { scan_.bind(kind, word); }
  void bind(double value) { bind(wire::Word::kBits, wire::bits_word(value)); }
  void bind(int64_t value) { bind(wire::Word::kNumber, wire::zigzag_word(value)); }

  void word(Tag tag, uint64_t rest = 0) { key_.push_back(static_cast<uint64_t>(tag) | rest << 8); }

  void argument(const c10::IValue& value, const ArgumentInfo& info) {
    if (value.isNone()) return word(Tag::kNone);
    switch (info.kind) {
      case Kind::kTensor:
        return tensor(value.toTensor(), info.written);
      case Kind::kTensorList:
        return tensors(value, info.written);
      case Kind::kInt:
        return integer(value);
      case Kind::kDouble:
        word(Tag::kDouble);
        return bind(value.toDouble());
      case Kind::kBool:
        return word(Tag::kBool, value.toBool());
      case Kind::kScalar:
        return scalar(value.toScalar());
      case Kind::kString:
        return text(value.toStringRef());
      case Kind::kDevice:
        return word(Tag::kDevice, static_cast<uint64_t>(value.toDevice().type()));
      case Kind::kGenerator:
        at::check_generator<VirtualGenerator>(value.toGenerator());  // before anything is appended
        scan_.random = value.toGenerator();
        return word(Tag::kGenerator);
      case Kind::kScalarList:
        word(Tag::kScalarList, value.toListRef().size());
        for (const auto& item : value.toListRef()) scalar(item.toScalar());
        return;
      default:
        return numbers(value, info.kind);
    }
  }

  void tensor(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return word(Tag::kNone);
    if (!tensor.is_cuda()) return host(tensor, written);
    if (info_.sparse && is_sparse(tensor)) return sparse(tensor);
    const auto* impl = tensor.unsafeGetTensorImpl();
    auto& handle = handle_of(*impl);
    if (handle.device != scan_.device) [[unlikely]] refuse_device(scan_.device, tensor);
    if (written) CommandStream::of(handle.device).contents().forget(handle);
    const auto sizes = impl->sizes(), strides = impl->strides();
    word(Tag::kTensor, static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(flags_of(tensor)) << 8 | sizes.size() << 16);
    for (const int64_t size : sizes) key_.push_back(static_cast<uint64_t>(size));
    for (const int64_t stride : strides) key_.push_back(static_cast<uint64_t>(stride));
    bind(wire::Word::kStorage, handle.id);
    bind(wire::Word::kNumber, impl->numel() == 0 ? 0 : static_cast<uint64_t>(impl->storage_offset()));  // nothing is read of an empty one
  }

  void sparse(const at::Tensor& tensor) {
    word(Tag::kSparse);
    add_sparse_key(key_, tensor);
    for (const auto& part : parts_of(tensor)) this->tensor(part, false);
  }

  void host(const at::Tensor& tensor, bool written) {
    if (!is_host_scalar(tensor) || written) refuse_device(scan_.device, tensor);
    const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    word(Tag::kScalarTensor, static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(wrapped) << 8);
    const auto value = tensor.item();
    if (tensor.is_complex()) {
      bind(value.toComplexDouble().real());
      bind(value.toComplexDouble().imag());
    } else if (tensor.is_floating_point()) {
      bind(value.toDouble());
    } else {
      bind(value.toLong());
    }
  }

  void tensors(const c10::IValue& value, bool written) {
    const auto list = value.toListRef();
    word(Tag::kTensorList, list.size());
    for (const auto& item : list) {
      if (item.isNone()) {
        word(Tag::kNone);
      } else {
        tensor(item.toTensor(), written);
      }
    }
  }

  void integer(const c10::IValue& value) {
    word(Tag::kInt);
    key_.push_back(static_cast<uint64_t>(value.toInt()));
  }

  void scalar(const at::Scalar& value) {
    if (value.isBoolean()) {
      word(Tag::kScalarBool, info_.scalars_shape && value.toBool());
      bind(wire::Word::kByte, value.toBool());
    } else if (value.isIntegral(false)) {
      word(Tag::kScalarInt);
      const int64_t number = value.type() == at::kUInt64 ? static_cast<int64_t>(value.toUInt64()) : value.toLong();
      if (info_.scalars_shape) key_.push_back(static_cast<uint64_t>(number));
      bind(number);
    } else if (value.isFloatingPoint()) {
      word(Tag::kScalarDouble);
      const double number = value.toDouble();
      uint64_t bits;
      std::memcpy(&bits, &number, sizeof(bits));
      if (info_.scalars_shape) key_.push_back(bits);
      bind(number);
    } else {
      word(Tag::kScalarComplex);
      bind(value.toComplexDouble().real());
      bind(value.toComplexDouble().imag());
    }
  }

  void text(const std::string& value) {
    word(Tag::kString, value.size());
    for (const char letter : value) key_.push_back(static_cast<uint8_t>(letter));
  }

  void numbers(const c10::IValue& value, Kind kind) {
    if (kind == Kind::kDoubleList) {
      const auto list = value.toDoubleVector();
      word(Tag::kDoubleList, list.size());
      for (const double number : list) bind(number);
    } else if (kind == Kind::kBoolList) {
      const auto list = value.toBoolList();
      word(Tag::kBoolList, list.size());
      for (const bool flag : list) key_.push_back(flag);
    } else {
      const auto list = value.toListRef();
      word(Tag::kIntList, list.size());
      for (const auto& number : list) key_.push_back(static_cast<uint64_t>(number.toInt()));
    }
  }

  const OperatorInfo& info_;
  Scan& scan_;
  std::vector<uint64_t>& key_;
};

// Making results.

at::Tensor make_tensor(c10::DeviceIndex device, uint64_t storage, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t storage_bytes) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(adopt_storage(device, storage, storage_bytes), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor make_result(c10::DeviceIndex device, const ResultGeometry& item, uint64_t& next_storage) {
  if (!item.defined) return {};
  return make_tensor(device, next_storage++, item.dtype, item.sizes, item.strides, item.storage_bytes);
}

Stack make_results(c10::DeviceIndex device, const Prediction& prediction, const Stack& arguments, uint64_t next_storage) {
  Stack results;
  for (const auto& result : prediction.results) {
    if (result.argument >= 0) {
      results.push_back(arguments[static_cast<size_t>(result.argument)]);
    } else if (result.number) {
      results.emplace_back(*result.number);
    } else if (result.list) {
      c10::List<at::Tensor> list;
      for (const auto& item : result.items) list.push_back(make_result(device, item, next_storage));
      results.emplace_back(std::move(list));
    } else {
      results.emplace_back(make_result(device, result.items.front(), next_storage));
    }
  }
  return results;
}

// Reads what the worker told of one result.
c10::IValue get_answer(c10::DeviceIndex device, wire::Reader& in) {
  switch (static_cast<OutputTag>(in.u8())) {
    case OutputTag::kNone:
      return at::Tensor();
    case OutputTag::kNew: {
      const uint64_t storage = in.varint();
      const auto geometry = wire::get_geometry(in);
      const auto bytes = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the size of a storage"));
      return make_tensor(device, storage, static_cast<at::ScalarType>(geometry.dtype), geometry.sizes, geometry.strides, bytes);
    }
    case OutputTag::kList: {
      c10::List<at::Tensor> list;
      for (size_t left = in.count(wire::kItemsMax, "the length of a list"); left > 0; --left) list.push_back(get_answer(device, in).toTensor());
      return list;
    }
    case OutputTag::kSame:
      in.varint();  // an argument, which is here
      return at::Tensor();
    case OutputTag::kSparse:
      return get_sparse(device, in, [device](wire::Reader& more) { return get_answer(device, more).toTensor(); });
    case OutputTag::kInt:
      return in.zigzag();
    case OutputTag::kDouble:
      return in.f64();
    case OutputTag::kBool:
      return in.u8() != 0;
    case OutputTag::kComplex: {
      const double real = in.f64();
      return c10::complex<double>(real, in.f64());
    }
    default:
      TORCH_CHECK(false, "the worker told of a result of unknown kind");
  }
}

// Indices may be of the CPU; and masks of bytes are warned of as the native kernels do, at each call.
void prepare_indices(c10::DeviceIndex device, Stack& stack) {
  bool moves = false;
  for (const auto& item : stack[1].toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) continue;
    const auto& index = item.toTensor();
    moves |= index.device().is_cpu();
    if (index.scalar_type() == at::kByte) [[unlikely]] {
      TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
    }
  }
  if (!moves) return;
  c10::List<std::optional<at::Tensor>> moved;
  for (const auto& item : stack[1].toListRef()) {
    const bool given = !item.isNone() && item.toTensor().defined();
    moved.push_back(given ? std::optional(item.toTensor().to(at::Device(at::kCUDA, device))) : std::nullopt);
  }
  stack[1] = std::move(moved);
}

// As native kernels do; the worker's warn nobody.
void warn_of_expanded(const OperatorInfo& info, const Stack& stack) {
  if (!info.fills_expanded || at::has_internal_overlap(stack[0].toTensor()) != at::MemOverlap::Yes) return;
  const auto name = info.takes_indices ? "index_put_" : info.name.substr(std::string_view("aten::").size());
  TORCH_WARN("Use of ", name, " on expanded tensors is deprecated. Please clone() the tensor before performing this operation. ",
             "This also applies to advanced indexing e.g. tensor[", info.takes_indices ? "indices] = tensor" : "mask] = scalar");
}

constexpr uint64_t kStoragesOfAnswer = wire::kItemsMax;  // ids set aside for a list of unknown length

constexpr uint64_t kFirstGeneration = 1;  // of a process that never lost its tensors

void refuse_lost(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.is_cuda() && tensor.has_storage()) handle_of(*tensor.unsafeGetTensorImpl());
}

// A call on a tensor that is lost can only fail: it takes no lease, which would cost what is our failure.
void refuse_lost(const Stack& stack) {
  for (const auto& value : stack) {
    if (value.isTensor()) refuse_lost(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) refuse_lost(tensor);
  }
}

// No rows have no distances, and a derivative of zeros, which no worker need be asked for.
bool is_gradient_of_nothing(const OperatorInfo& info, const Stack& stack) {
  return info.name == "aten::_pdist_backward" && info.overload.empty() && stack[1].toTensor().numel() == 0;
}

}  // namespace

void Scan::clear() {
  key.clear();
  words.clear();
  kinds.clear();
  random = at::Generator();
}

Recorder::Recorder(c10::DeviceIndex device) : device_(device), stream_(CommandStream::of(device)), commands_(stream_.commands()) {
  stream_.set_knowledge(this);
}

Recorder& Recorder::of(c10::DeviceIndex device) {
  static const auto* recorders = [] {
    auto* list = new std::vector<Recorder*>;
    for (c10::DeviceIndex index = 0; index < kDevicesMax; ++index) list->push_back(new Recorder(index));
    return list;
  }();
  return *(*recorders)[static_cast<size_t>(device)];
}

Recorder& Recorder::of(const OperatorInfo& info, const Stack& stack) {
  std::optional<c10::Device> named;
  for (size_t index = 0; index < stack.size(); ++index) {
    const auto& value = stack[index];
    const Kind kind = info.arguments[index].kind;
    if (kind == Kind::kTensor && value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined() && tensor.is_cuda()) return of(tensor.get_device());
    } else if (kind == Kind::kTensorList && !value.isNone()) {
      for (const auto& item : value.toListRef()) {
        if (item.isTensor() && item.toTensor().defined() && item.toTensor().is_cuda()) return of(item.toTensor().get_device());
      }
    } else if (kind == Kind::kDevice && value.isDevice() && value.toDevice().is_cuda()) {
      named = value.toDevice();
    }
  }
  return of(device_named(named));
}

// Outside the lock: sends what is due, and waits where it is not known whether the worker carries the call out.
void Recorder::finish_call(const Sent& sent, bool overlapping) {
  stream_.send_if_due();
  if (sent.known && !overlapping && !waits_for_each_call()) [[likely]] return;
  if (in_signal_handler()) return;
  stream_.finish(sent.sequence);
  KnownCalls::get().add(sent.kind);
}

// PyTorch has CUDA devices widen half precision within a softmax and narrow it within its derivative; a CPU worker has no such kernels.
// Returns whether the call was recorded in parts.
bool Recorder::record_in_parts(OperatorInfo& info, Stack& stack) {
  if (!info.overload.empty()) return false;
  if (info.name == "aten::_softmax" || info.name == "aten::_log_softmax") {
    if (!stack[2].toBool()) return false;
    stack[0] = stack[0].toTensor().to(at::kFloat);
    stack[2] = false;
    record(info, stack);
    return true;
  }
  if (info.name != "aten::_softmax_backward_data" && info.name != "aten::_log_softmax_backward_data") return false;
  const auto given = stack[0].toTensor().scalar_type(), wanted = stack[3].toScalarType();
  if (given == wanted) return false;
  stack[3] = static_cast<int64_t>(given);
  record(info, stack);
  stack[0] = stack[0].toTensor().to(wanted);
  return true;
}

void Recorder::record(OperatorInfo& info, Stack& stack) {
  const ActivityClock profiled(info, device_);
  if (stream_.generation() != kFirstGeneration) [[unlikely]] refuse_lost(stack);
  if (info.takes_indices) prepare_indices(device_, stack);
  if (info.distribution) check_distribution(info, stack);
  stream_.lease().need();
  stream_.check_stopped();
  thread_local Scan scan;
  scan.clear();
  scan.device = device_;
  scan.generation = stream_.generation();
  scan.default_dtype = c10::get_default_dtype_as_scalartype();
  Scanner(info, scan).scan(stack);
  const bool overlapping = info.writes && overlaps(info, stack);
  if (overlapping) [[unlikely]] warn_of_expanded(info, stack);
  auto lock = stream_.lock_for(scan.generation);
  Entry* entry = find(hash_of(scan.key), scan.key);
  if (entry != nullptr && entry->prediction.asks) {
    const Prediction prediction = entry->prediction;
    lock.unlock();
    Scan own = scan;  // a signal handler may record meanwhile
    return ask(info, stack, own, prediction);
  }
  if (entry == nullptr) {
    lock.unlock();  // meta kernels in Python take the GIL, whose holder may wait for this lock
    if (info.writes_out && growths_.apply(info, stack, scan.key)) return record(info, stack);
    return record_slowly(info, stack, scan, overlapping);
  }
  finish_call(append_call(info, stack, scan, *entry, std::move(lock)), overlapping);
}

void Recorder::record_slowly(OperatorInfo& info, Stack& stack, Scan scan, bool overlapping) {
  if (size_statistics(info, stack)) return record(info, stack);
  if (is_gradient_of_nothing(info, stack)) {
    stack = {at::zeros_like(stack[1].toTensor())};
    return;
  }
  const bool cpu = stream_.worker().is_cpu;
  if (cpu && (record_in_parts(info, stack) || record_widened(info, stack))) return;
  if (info.writes_out && (only_worker_knows(info) || (cpu && has_strided_out(info, stack))) && record_without_out(info, stack)) return;
  Growth growth;
  auto prediction = infer(info, stack, cpu, growth);
  if (!prediction) {
    growths_.remember(scan.key, std::move(growth));
    return record(info, stack);
  }
  if (prediction->unsized_out && record_without_out(info, stack)) return;
  if (prediction->read_out && info.pointwise && part_from_written(info, stack)) return record(info, stack);
  TORCH_CHECK(!prediction->read_out, "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location, and "
              "the written-to tensor must grow. Please clone() the tensor before performing the operation.");
  if (prediction->asks) return ask(info, stack, scan, *prediction);
  auto lock = stream_.lock_for(scan.generation);
  if (cpu != stream_.worker().is_cpu) [[unlikely]] {  // the session has moved to a device of another kind
    lock.unlock();
    return record(info, stack);
  }
  Entry& entry = find_or_insert(info, stack, scan, *prediction);
  finish_call(append_call(info, stack, scan, entry, std::move(lock)), overlapping);
}

Recorder::Sent Recorder::append_call(OperatorInfo& info, Stack& stack, Scan& scan, Entry& entry, std::unique_lock<std::mutex> lock) {
  if (entry.new_bytes > 0) check_room(device_, entry.new_bytes);
  if (!entry.known) [[unlikely]] entry.known = KnownCalls::get().knows(entry.kind);
  if (heeds_settings(info)) tell_settings();
  const uint64_t first = stream_.new_storages(entry.prediction.new_storages);
  for (uint64_t id = first; id < first + entry.prediction.new_storages; ++id) scan.bind(wire::Word::kNew, id);
  bind_random(info, scan);
  commands_.tracer().step(wire::call_key(entry.number), scan.words, scan.kinds);
  const Sent sent{commands_.next_call(), entry.kind, entry.known};
  commands_.appended();
  Stack results = make_results(device_, entry.prediction, stack, first);  // under the lock: a FORGET would drop the entry
  lock.unlock();
  note_location(device_, sent.sequence);
  note_launch(info, device_, sent.sequence);
  stack = std::move(results);
  return sent;
}

void Recorder::ask(OperatorInfo& info, Stack& stack, Scan& scan, const Prediction& prediction) {
  const uint64_t first = stream_.new_storages(kStoragesOfAnswer);
  Stack results;
  stream_.ask(
      scan.generation,
      [&](uint64_t request) {
        const Entry& entry = find_or_insert(info, stack, scan, prediction);
        bind_random(info, scan);
        if (heeds_settings(info)) tell_settings();
        auto& out = commands_.cut();
        const size_t begin = commands_.place();
        out.command(Command::kAsk);
        out.varint(request);
        out.varint(first);
        out.varint(entry.number);
        for (size_t index = 0; index < scan.words.size(); ++index) wire::put_word(out, scan.kinds[index], scan.words[index]);
        commands_.note_question(begin, request, AskedCommand::Kind::kMakes);
        const uint64_t sequence = commands_.next_call();
        note_launch(info, device_, sequence);
        return sequence;
      },
      [&](wire::Reader& in) {
        const size_t count = in.count(wire::kArgumentsMax, "the number of outputs");
        TORCH_CHECK(count == prediction.results.size(), "the worker told of ", count, " results of ", info.name);
        for (const auto& result : prediction.results) {
          auto answer = get_answer(device_, in);
          results.push_back(result.argument < 0 ? std::move(answer) : stack[static_cast<size_t>(result.argument)]);
        }
      });
  stack = std::move(results);
}

void Recorder::bind_random(const OperatorInfo& info, Scan& scan) {
  if (!info.random) return;
  const at::Generator& generator = scan.random.defined() ? scan.random : default_generator(device_);
  const auto& state = at::check_generator<VirtualGenerator>(generator)->state();
  const auto place = state->next();
  commands_.random_calls().note(commands_.upcoming_call(), state, place);
  scan.bind(wire::Word::kBits, place.seed);
  scan.bind(wire::Word::kCounter, place.counter);
}

// Templates; all under the lock of the commands.

Entry* Recorder::find(uint64_t hash, const std::vector<uint64_t>& key) {
  const auto found = entries_.find(hash);
  if (found == entries_.end()) return nullptr;
  for (Entry* entry = found->second.get(); entry != nullptr; entry = entry->next.get()) {
    if (entry->key == key) return entry;
  }
  return nullptr;
}

Entry& Recorder::find_or_insert(OperatorInfo& info, const Stack& stack, const Scan& scan, const Prediction& prediction) {
  const uint64_t hash = hash_of(scan.key);
  if (Entry* entry = find(hash, scan.key)) return *entry;
  const wire::Writer constant = template_of(info, stack, prediction, scan.default_dtype);  // may throw, so before anything is appended
  if (count_ == wire::kTemplatesMax || template_bytes_ > wire::kTemplatesItemsMax) {  // an item takes a byte at least
    commands_.tracer().clear();
    commands_.command().command(Command::kForget);
    commands_.definitions().forget_templates();
    drop_templates();
  }
  put_operator(info);
  auto& out = commands_.command();
  const size_t before = out.size();
  out.command(Command::kTemplate);
  out.varint(operators_.at(&info));
  out.raw(constant.bytes().data(), constant.size());
  commands_.note_definition(before, Definitions::Kind::kTemplate);
  template_bytes_ += out.size() - before + scan.words.size();
  const uint64_t kind = kind_of(info, stack, scan.default_dtype, stream_.worker().kind);
  auto entry = std::make_unique<Entry>(Entry{scan.key, count_++, prediction, new_bytes_of(prediction), kind, false, nullptr});
  auto& slot = entries_[hash];
  entry->next = std::move(slot);
  slot = std::move(entry);
  return *slot;
}

void Recorder::put_operator(const OperatorInfo& info) {
  if (!operators_.emplace(&info, operators_.size()).second) return;
  auto& out = commands_.command();
  const size_t before = out.size();
  out.command(Command::kOperator);
  out.string(info.name);
  out.string(info.overload);
  out.u64(info.schema_hash);
  commands_.note_definition(before, Definitions::Kind::kOperator);
}

bool Recorder::heeds_settings(const OperatorInfo& info) const {
  if (asks_for_recomputation()) return true;
  return stream_.worker().is_cpu || info.heeds_settings;
}

// Between two steps of a trace, so that a program that sets nothing has them as before.
void Recorder::tell_settings() {
  const uint64_t settings = stream_.worker().is_cpu ? host_settings() : program_settings();
  if (settings == told_settings_) [[likely]] return;
  told_settings_ = settings;
  auto& out = commands_.cut();
  const size_t before = out.size();
  out.command(Command::kSettings);
  out.varint(settings);
  commands_.note_definition(before, Definitions::Kind::kSettings);
}

void Recorder::drop_templates() {
  entries_.clear();
  growths_.clear();
  count_ = 0;
  template_bytes_ = 0;
}

void Recorder::forget_operator(const std::string& name) {
  const std::lock_guard lock(commands_.mutex());
  growths_.clear();
  const auto is_of = [&](const Entry& entry) { return reinterpret_cast<const OperatorInfo*>(entry.key.front())->name == name; };
  for (auto& [hash, first] : entries_) {
    for (auto* slot = &first; *slot != nullptr;) {
      if (is_of(**slot)) {
        *slot = std::move((*slot)->next);
      } else {
        slot = &(*slot)->next;
      }
    }
  }
}

void Recorder::distrust(const std::string& op) {
  ask_from_now_on(op);
  for (c10::DeviceIndex device = 0; device < kDevicesMax; ++device) of(device).forget_operator(op);
}

void Recorder::forget() {
  drop_templates();
  operators_.clear();
  kernels_.clear();
  programs_.clear();
  told_settings_ = wire::kSettingsDefault;
}

}  // namespace forebay
