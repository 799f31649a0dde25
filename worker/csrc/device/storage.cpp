#include "device/storage.h"

#include <random>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <forebay/out_of_memory.h>

#include "base/dtypes.h"
#include "base/memory.h"

namespace forebay::worker {

namespace {

constexpr int64_t kUploadKeptBytesMax = 256 << 10;  // indices of a batch
constexpr size_t kUploadsKeptMax = 64;

uint64_t chance() {
  std::random_device source;
  return (static_cast<uint64_t>(source()) << 32) ^ source();
}

}  // namespace

Layout checked_layout(uint64_t id, const wire::Geometry& geometry) {
  if (!is_supported(geometry.dtype)) throw wire::WireError("a tensor of dtype " + std::to_string(geometry.dtype) + ", which is not served");
  if (geometry.flags > (wire::kFlagConj | wire::kFlagNeg)) throw wire::WireError("a tensor with unknown flags " + std::to_string(geometry.flags));
  Layout layout;
  layout.id = id;
  layout.dtype = static_cast<c10::ScalarType>(geometry.dtype);
  layout.type = c10::scalarTypeToTypeMeta(layout.dtype);
  layout.conj = geometry.flags & wire::kFlagConj;
  layout.neg = geometry.flags & wire::kFlagNeg;
  if (layout.conj && !c10::isComplexType(layout.dtype)) throw wire::WireError("a conjugate bit on a tensor that is not complex");
  layout.item_bytes = static_cast<int64_t>(layout.type.itemsize());
  layout.span = wire::span_of(geometry);
  const std::optional<int64_t> numel = wire::elements_of(geometry.sizes);
  if (!numel) throw wire::WireError("a tensor of more elements than can be served");
  layout.numel = *numel;
  layout.sizes = geometry.sizes;
  layout.strides = geometry.strides;
  if (layout.span > wire::kStorageBytesMax / layout.item_bytes) throw wire::WireError("a tensor larger than a storage may be");
  return layout;
}

void Entry::check_range(uint64_t offset, size_t bytes, const char* what) const {
  const auto size = static_cast<uint64_t>(bytes_);
  if (offset <= size && bytes <= size - offset) return;
  if (shortfall_) throw CommandError(shortfall_->code, shortfall_->message);
  throw wire::WireError(std::string(what) + " of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a storage of " +
                        std::to_string(size) + " bytes");
}

const c10::Storage& Entry::memory_of(const Device& device) {
  TORCH_INTERNAL_ASSERT(spilled_.empty(), "a storage is used while it is on disk");
  TORCH_INTERNAL_ASSERT(home() == 0, "a storage is used on the first device while it lies elsewhere");
  if (!memory_) memory_ = device.allocate(bytes_, /*zeroed=*/true);
  return memory_;
}

const c10::Storage& Entry::touch_unwritten(const Device& device) {
  if (watch_) [[unlikely]] watch_->before_overwrite();
  forget_numbers();
  if (!memory_) memory_ = device.allocate(bytes_, /*zeroed=*/false);
  return memory_;
}

const at::Tensor& Entry::view(const Device& device, const Layout& layout, int64_t offset) {
  if (watch_) [[unlikely]] watch_->before_read();
  for (const auto& view : views_) {
    if (view.layout == layout.id && view.offset == offset) return view.tensor;
  }
  const auto key = dispatch_key(device.where().type());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory_of(device)), c10::DispatchKeySet(key), layout.type);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(layout.sizes, layout.strides, offset);
  if (layout.conj) impl->_set_conj(true);
  if (layout.neg) impl->_set_neg(true);
  auto& slot = views_[next_view_];
  next_view_ = static_cast<uint8_t>((next_view_ + 1) % views_.size());
  slot = {layout.id, offset, std::move(tensor), std::nullopt};
  return slot.tensor;
}

void Entry::adopt(const at::Tensor& tensor, uint64_t layout_id) {
  memory_ = tensor.storage();
  memory_.unsafeGetStorageImpl()->set_resizable(false);
  if (layout_id != 0) views_[0] = {layout_id, 0, tensor, std::nullopt};
  next_view_ = layout_id != 0 ? 1 : 0;
}

const Interval* Entry::numbers(const Layout& layout, int64_t offset, std::optional<int64_t> except) const {
  for (const auto& view : views_) {
    if (view.layout == layout.id && view.offset == offset && view.numbers && view.numbers->except == except) return &view.numbers->interval;
  }
  return nullptr;
}

void Entry::note_numbers(const Layout& layout, int64_t offset, std::optional<int64_t> except, const Interval& interval) {
  for (auto& view : views_) {
    if (view.layout == layout.id && view.offset == offset) view.numbers = Numbers{except, interval};
  }
}

Storages::Storages(const Device& device) : device_(device), entries_(1024, Mix{chance()}) {}

Entry& Storages::at(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) throw wire::WireError("storage " + std::to_string(id) + " does not exist");
  return found->second;
}

void Storages::check_new(uint64_t id) const {
  if (id == 0) throw wire::WireError("a new storage may not have the id 0");
  if (entries_.count(id) != 0) throw wire::WireError("storage " + std::to_string(id) + " exists already");
  if (entries_.size() >= wire::kStoragesMax) {
    throw wire::WireError("more than " + std::to_string(wire::kStoragesMax) + " storages are alive");
  }
}

void Storages::check_room(int64_t bytes) const {
  const int64_t held_bytes = used_bytes_ - absent_bytes_, free_bytes = limit_bytes_ - held_bytes;
  if (bytes > free_bytes - kept_bytes_ && kept_bytes_ > 0) [[unlikely]] give_up_(bytes - (free_bytes - kept_bytes_));
  if (bytes > free_bytes - kept_bytes_) {
    throw CommandError(wire::FailureCode::kOutOfMemory, out_of_memory(bytes, held_bytes, limit_bytes_));
  }
}

Entry& Storages::insert(uint64_t id, int64_t bytes) {
  const auto [position, fresh] = entries_.try_emplace(id, bytes, nullptr);
  if (!fresh) throw wire::WireError("storage " + std::to_string(id) + " exists already");
  used_bytes_ += bytes;
  return position->second;
}

void Storages::insert_failed(uint64_t id, const Cause& cause) {
  withdraw(id);
  entries_.try_emplace(id, 0, cause);
}

void Storages::withdraw(uint64_t id) {
  if (entries_.count(id) != 0) free(id);
}

void Storages::resize(uint64_t id, int64_t bytes) {
  Entry& entry = at(id);
  if (entry.cause_) return;
  if (entry.watch_) entry.watch_->before_write();
  check_room(bytes - entry.bytes_);
  if (entry.memory_) {
    auto grown = device_.allocate(bytes, /*zeroed=*/true);
    device_.copy(grown, 0, entry.memory_, 0, std::min(bytes, entry.bytes_));
    entry.replace(std::move(grown));
  }
  used_bytes_ += bytes - entry.bytes_;
  entry.bytes_ = bytes;
  entry.shortfall_.reset();
}

void Storages::keep_upload(uint64_t id, const uint8_t* data, int64_t bytes) {
  Entry& entry = at(id);
  if (device_.is_host() || bytes != entry.bytes_ || bytes > kUploadKeptBytesMax) return;
  entry.keep_upload(data, static_cast<size_t>(bytes));
  uploads_kept_.push_back(id);
  if (uploads_kept_.size() <= kUploadsKeptMax) return;
  const auto oldest = entries_.find(uploads_kept_.front());
  if (oldest != entries_.end()) oldest->second.uploaded_ = {};
  uploads_kept_.pop_front();
}

void Storages::count_as(uint64_t id, int64_t bytes) {
  Entry& entry = at(id);
  used_bytes_ += bytes - entry.bytes_;
  entry.bytes_ = bytes;
}

void Storages::free(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) throw wire::WireError("storage " + std::to_string(id) + " does not exist");
  if (found->second.watch_ && found->second.watch_->stays_when_freed()) return;
  used_bytes_ -= found->second.bytes_;
  entries_.erase(found);
}

StorageAside::StorageAside(Storages& storages, uint64_t id) : storages_(storages), node_(storages.entries_.extract(id)) {
  TORCH_INTERNAL_ASSERT(!node_.empty(), "a storage is put aside that does not exist");
  storages_.used_bytes_ -= node_.mapped().bytes();
  storages_.absent_bytes_ -= node_.mapped().bytes();
}

StorageAside::~StorageAside() {
  Entry& entry = node_.mapped();
  const auto came = storages_.entries_.find(node_.key());
  if (came != storages_.entries_.end()) {
    entry.replace(std::move(came->second.memory_));
    entry.elsewhere_ = std::move(came->second.elsewhere_);
    entry.on_host_ = std::move(came->second.on_host_);
    entry.share_ = std::move(came->second.share_);
    entry.kept_ = came->second.kept_;
    storages_.used_bytes_ -= came->second.bytes();
    storages_.entries_.erase(came);
  }
  storages_.used_bytes_ += entry.bytes();
  storages_.absent_bytes_ += entry.bytes();
  storages_.entries_.insert(std::move(node_));
}

}  // namespace forebay::worker
