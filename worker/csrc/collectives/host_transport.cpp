#include "collectives/host_transport.h"

#include <algorithm>
#include <string>

#include <ATen/ops/from_blob.h>

#include "collectives/reduction.h"

namespace forebay::worker {

// Bytes of a storage on the host: the storage's own if it lies there, else a copy. They outlive a parking in the middle of an exchange.
class HostTransport::HostRange {
 public:
  HostRange(HostTransport& transport, const StorageRange& range) : transport_(transport), range_(range) {
    const Device& device = transport.device_;
    Entry& entry = transport.storages_.at(range.id);
    entry.check_range(static_cast<uint64_t>(range.offset), static_cast<size_t>(range.bytes), "a collective");
    const auto& memory = entry.touch(device);
    if (device.is_host()) {
      memory_ = memory;
      at_ = range.offset;
    } else {
      memory_ = device.allocate_staging(range.bytes);
      device.copy(memory_, 0, memory, range.offset, range.bytes);
    }
  }

  uint8_t* data() const { return range_.bytes == 0 ? nullptr : static_cast<uint8_t*>(memory_.mutable_data()) + at_; }
  int64_t bytes() const { return range_.bytes; }
  at::Tensor flat(c10::ScalarType type) const {
    return at::from_blob(data(), {range_.bytes / static_cast<int64_t>(c10::elementSize(type))}, at::TensorOptions(type));
  }

  // What was written there becomes the storage's, which may have come to another device of the gang by a parking.
  void put_back() const {
    Entry& entry = transport_.storages_.at(range_.id);
    if (entry.home() != 0) return transport_.gang_.gang().homes().write(range_.id, entry, range_.offset, data(), range_.bytes);
    const auto& memory = entry.touch(transport_.device_);
    if (!memory.is_alias_of(memory_)) transport_.device_.copy(memory, range_.offset, memory_, at_, range_.bytes);
  }

 private:
  HostTransport& transport_;
  StorageRange range_;
  c10::Storage memory_{nullptr};
  int64_t at_ = 0;
};

std::vector<HostTransport::HostRange> HostTransport::fetched(const std::vector<StorageRange>& ranges) {
  std::vector<uint64_t> ids;
  for (const auto& range : ranges) ids.push_back(range.id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  gang_.make_whole(ids);
  if (gang_.is_on()) gang_.gang().homes().gather(ids, 0);
  std::vector<HostRange> result;
  if (!device_.computes()) return result;
  for (const auto& range : ranges) result.emplace_back(*this, range);
  if (!device_.is_host()) device_.synchronize();
  return result;
}

void HostTransport::put_back(const std::vector<HostRange>& bytes, size_t first) {
  for (size_t index = first; index < bytes.size(); ++index) bytes[index].put_back();
  device_.synchronize();  // before host memory goes
}

void HostTransport::exchange(const ProcessGroup::Subject& subject, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received) {
  exchange_after(subject, {}, sent, received);
}

void HostTransport::exchange_after(const ProcessGroup::Subject& subject, const Ahead& ahead, const std::vector<StorageParcel>& sent,
                                   const std::vector<StorageParcel>& received) {
  std::vector<StorageRange> ranges;
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& parcel : *parcels) ranges.push_back(parcel.range);
  }
  const auto bytes = fetched(ranges);
  if (!device_.computes()) return;
  std::vector<ProcessGroup::Parcel> out = ahead.sent, back = ahead.received;
  for (size_t index = 0; index < bytes.size(); ++index) {
    const bool is_sent = index < sent.size();
    const size_t member = is_sent ? sent[index].member : received[index - sent.size()].member;
    if (member >= group_.size()) throw wire::WireError("rank " + std::to_string(member) + " of a process group of " + std::to_string(group_.size()));
    (is_sent ? out : back).push_back({member, bytes[index].data(), static_cast<size_t>(bytes[index].bytes())});
  }
  group_.exchange(subject, out, back);
  host_.wait_for_lease();
  put_back(bytes, sent.size());
}

void HostTransport::reduce(const ProcessGroup::Subject& subject, const StorageRange& input, const StorageRange& result) {
  const bool scatters = subject.what == wire::Collective::kReduceScatter;
  const auto bytes = fetched({input, result});
  if (!device_.computes()) return;
  if (input.bytes != (scatters ? result.bytes * static_cast<int64_t>(group_.size()) : result.bytes)) throw wire::WireError("a reduction into another number of elements");
  const auto type = static_cast<c10::ScalarType>(subject.dtype);
  const at::Tensor target = bytes[1].flat(type);
  if (scatters) {
    reduce_scatter(group_, subject, bytes[0].flat(type), target);
  } else {
    if (bytes[0].data() != bytes[1].data()) target.copy_(bytes[0].flat(type));
    all_reduce(group_, subject, target);
  }
  host_.wait_for_lease();
  put_back(bytes, 1);
}

void HostTransport::reduce_each(const std::vector<StorageReduction>& each) {
  std::vector<StorageRange> ranges;
  for (const auto& one : each) ranges.push_back(one.range);
  const auto bytes = fetched(ranges);
  if (!device_.computes()) return;
  std::vector<Reduced> reduced;
  for (size_t index = 0; index < bytes.size(); ++index) reduced.push_back({each[index].reduction, bytes[index].flat(each[index].dtype)});
  all_reduce_each(group_, reduced);
  host_.wait_for_lease();
  put_back(bytes, 0);
}

}  // namespace forebay::worker
