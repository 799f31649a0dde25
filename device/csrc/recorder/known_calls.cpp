#include "recorder/known_calls.h"

#include <ATen/MemoryOverlap.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <new>

namespace forebay {
namespace {

constexpr size_t kKindsMax = 131'072;  // 1 MiB on disk
constexpr int64_t kPlainMax = 8;       // larger numbers are sizes, mostly, and no kinds of their own

class Hash {
 public:
  explicit Hash(uint64_t seed) : value_(seed) {}
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15ULL;
    value_ ^= value_ >> 29;
  }
  void add(std::string_view text) {
    add(text.size());
    for (const char letter : text) add(static_cast<uint8_t>(letter));
  }
  void add_number(int64_t number) { add(static_cast<uint64_t>(std::min(number, kPlainMax + 1))); }
  // Which of the sizes seen so far it is: kernels compare sizes with each other, whatever they are.
  void add_size(int64_t size) {
    if (size < 2) return add(static_cast<uint64_t>(size));
    const auto found = std::find(sizes_.begin(), sizes_.end(), size);
    add(static_cast<uint64_t>(2 + (found - sizes_.begin())));
    if (found == sizes_.end()) sizes_.push_back(size);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_;
  std::vector<int64_t> sizes_;
};

void add_tensor(Hash& hash, const at::Tensor& tensor) {
  if (!tensor.defined()) return hash.add(1);
  const bool dense = tensor.layout() == at::kStrided, number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  const uint64_t flags = static_cast<uint64_t>(tensor.is_conj()) | static_cast<uint64_t>(tensor.is_neg()) << 1 | static_cast<uint64_t>(number) << 2 |
                         static_cast<uint64_t>(tensor.is_cpu()) << 3 | static_cast<uint64_t>(dense && tensor.is_contiguous()) << 4 |
                         static_cast<uint64_t>(tensor.numel() == 0) << 5;
  hash.add(static_cast<uint64_t>(tensor.layout()));
  hash.add(2 | flags << 8 | static_cast<uint64_t>(tensor.scalar_type()) << 16 | static_cast<uint64_t>(tensor.dim()) << 32);
  for (const int64_t size : tensor.sizes()) hash.add_size(size);
}

void add_value(Hash& hash, const c10::IValue& value) {
  if (value.isTensor()) return add_tensor(hash, value.toTensor());
  if (value.isInt()) {
    hash.add(7);
    return hash.add_number(value.toInt());
  }
  if (value.isBool()) return hash.add(8 + static_cast<uint64_t>(value.toBool()));
  if (value.isString()) return hash.add(value.toStringRef());
  if (value.isList()) {
    const auto list = value.toListRef();
    hash.add(10);
    hash.add(list.size());
    for (const auto& item : list) add_value(hash, item);
    return;
  }
  hash.add(value.isNone() ? 3 : value.isDouble() ? 4 : value.isComplexDouble() ? 5 : 6);
}

bool shares(const c10::TensorImpl* written, const c10::TensorImpl* read) {
  if (read == written || !read->has_storage() || !read->unsafe_storage().is_alias_of(written->unsafe_storage())) return false;
  return at::get_overlap_status(const_cast<c10::TensorImpl*>(written), const_cast<c10::TensorImpl*>(read)) != at::MemOverlapStatus::No;
}

bool shares(const c10::TensorImpl* written, const c10::IValue& value) {
  if (value.isTensor()) return shares(written, value.unsafeToTensorImpl());
  if (!value.isTensorList()) return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), [&](const c10::IValue& item) { return shares(written, item.unsafeToTensorImpl()); });
}

}  // namespace

uint64_t kind_of(const OperatorInfo& info, const torch::jit::Stack& stack, at::ScalarType default_dtype, uint64_t worker) {
  Hash hash(worker ^ info.schema_hash);
  hash.add(info.name);
  if (default_dtype != at::kFloat) hash.add(static_cast<uint64_t>(default_dtype));
  for (const auto& value : stack) add_value(hash, value);
  return hash.value();
}

bool overlaps(const OperatorInfo& info, const torch::jit::Stack& stack) {
  for (size_t index = 0; index < stack.size(); ++index) {
    if (!info.arguments[index].written || !stack[index].isTensor()) continue;
    const auto* written = stack[index].unsafeToTensorImpl();
    if (!written->is_cuda() || !written->has_storage()) continue;
    if (at::has_internal_overlap(const_cast<c10::TensorImpl*>(written)) == at::MemOverlap::Yes) return true;
    for (size_t other = 0; other < stack.size(); ++other) {
      if (other != index && shares(written, stack[other])) return true;
    }
  }
  return false;
}

KnownCalls::KnownCalls() {
  ::pthread_atfork(nullptr, nullptr, [] { get().forked(); });
}

KnownCalls& KnownCalls::get() {
  static auto* calls = new KnownCalls;
  return *calls;
}

void KnownCalls::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  path_ = path;
  std::ifstream file(path, std::ios::binary);
  for (uint64_t kind = 0; kinds_.size() < kKindsMax && file.read(reinterpret_cast<char*>(&kind), sizeof(kind));) kinds_.insert(kind);
}

// In one write, so that processes which end together do not mix.
void KnownCalls::save() {
  const std::lock_guard lock(mutex_);
  if (path_.empty() || unsaved_.empty()) return;
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const size_t bytes = unsaved_.size() * sizeof(uint64_t);
  const bool whole = ::write(fd, unsaved_.data(), bytes) == static_cast<ssize_t>(bytes);
  ::close(fd);
  if (whole) unsaved_.clear();
}

bool KnownCalls::knows(uint64_t kind) {
  const std::lock_guard lock(mutex_);
  return kinds_.contains(kind);
}

void KnownCalls::add(uint64_t kind) {
  const std::lock_guard lock(mutex_);
  if (kinds_.size() < kKindsMax && kinds_.insert(kind).second) unsaved_.push_back(kind);
}

// The parent saves them.
void KnownCalls::forked() { unsaved_.clear(); }

}  // namespace forebay
