#include "collectives/device_transport.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include <ATen/ops/empty.h>

namespace forebay::worker {

namespace {

using Parcels = std::vector<StorageParcel>;

constexpr size_t kSaidBytes = 8;

std::vector<ProcessGroup::Parcel> without_data(const Parcels& parcels) {
  std::vector<ProcessGroup::Parcel> announced;
  for (const auto& [member, range] : parcels) announced.push_back({member, nullptr, static_cast<size_t>(range.bytes)});
  return announced;
}

std::vector<StorageRange> ranges_of(const Parcels& sent, const Parcels& received) {
  std::vector<StorageRange> ranges;
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& parcel : *parcels) ranges.push_back(parcel.range);
  }
  return ranges;
}

uint64_t largest_of(const Parcels& sent, const Parcels& received) {
  int64_t bytes = 0;
  for (const auto& range : ranges_of(sent, received)) bytes = std::max(bytes, range.bytes);
  return static_cast<uint64_t>(bytes);
}

}  // namespace

void DeviceTransport::exchange(const ProcessGroup::Subject& subject, const Parcels& sent, const Parcels& received) {
  if (!exchanges_) return by_host_.exchange(subject, sent, received);
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& parcel : *parcels) {
      if (parcel.member >= group_.size()) throw wire::WireError("rank " + std::to_string(parcel.member) + " of a process group of " + std::to_string(group_.size()));
    }
  }
  if (subject.what == wire::Collective::kMessage) return exchange_messages(subject, sent, received);
  const Team team = all_of(group_);
  if (sent.empty() && received.empty()) return by_host_.exchange(subject, sent, received);
  if (!shared_.are_possible(team) || !shared_.are_for(subject, largest_of(sent, received))) return by_host_.exchange(subject, sent, received);
  Communicator* const communicator = shared_.meet(team, {subject, without_data(sent), without_data(received)});
  if (communicator == nullptr) return by_host_.exchange(subject, sent, received);
  if (subject.what == wire::Collective::kBroadcast) return broadcast(*communicator, sent, received);
  carry(*communicator, team, sent, received);
}

// Messages among several members at once do not wait for each other, which a library's would. So two members use it for messages that are, on both
// sides, all that is exchanged at once; each tells the other whether they are. It does so where there is a large one: of those both know.
void DeviceTransport::exchange_messages(const ProcessGroup::Subject& subject, const Parcels& sent, const Parcels& received) {
  std::set<size_t> others, told;
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& [member, range] : *parcels) {
      others.insert(member);
      if (member != group_.rank() && shared_.are_for(subject, static_cast<uint64_t>(range.bytes)) && shared_.are_possible(with(member))) told.insert(member);
    }
  }
  const bool is_all = others.size() == 1;
  std::array<uint8_t, kSaidBytes> own{is_all};
  std::vector<std::array<uint8_t, kSaidBytes>> answers(told.size());
  HostTransport::Ahead ahead;
  for (const size_t member : told) {
    ahead.sent.push_back({member, own.data(), own.size()});
    ahead.received.push_back({member, answers[ahead.received.size()].data(), own.size()});
  }
  if (!is_all || told.empty()) return by_host_.exchange_after(subject, ahead, sent, received);
  group_.exchange(subject, ahead.sent, ahead.received);
  const Team pair = with(*told.begin());
  Communicator* const communicator = answers.front().front() == 0 ? nullptr : shared_.meet(pair, {subject, without_data(sent), without_data(received)});
  if (communicator == nullptr) return by_host_.exchange(subject, sent, received);
  carry(*communicator, pair, sent, received);
}

Team DeviceTransport::with(size_t member) const {
  return {{std::min(member, group_.rank()), std::max(member, group_.rank())}, group_.rank() > member ? size_t{1} : size_t{0}};
}

void DeviceTransport::carry(Communicator& communicator, const Team& team, const Parcels& sent, const Parcels& received) {
  bring(ranges_of(sent, received));
  Parcels own;
  std::vector<Communicator::Message> out, back;
  const auto place_of = [&team](size_t member) { return static_cast<size_t>(std::find(team.members.begin(), team.members.end(), member) - team.members.begin()); };
  for (const auto& parcel : sent) {
    if (parcel.member == group_.rank()) own.push_back(parcel);
    else if (parcel.range.bytes > 0) out.push_back({place_of(parcel.member), tensor_of(parcel.range, at::kByte)});
  }
  size_t taken = 0;
  for (const auto& parcel : received) {
    if (parcel.member == group_.rank()) {
      if (taken == own.size() || own[taken].range.bytes != parcel.range.bytes) throw GroupEnded("a message of this rank to itself that it does not send");
      const at::Tensor source = tensor_of(own[taken++].range, at::kByte);
      tensor_of(parcel.range, at::kByte).copy_(source);
    } else if (parcel.range.bytes > 0) {
      back.push_back({place_of(parcel.member), tensor_of(parcel.range, at::kByte)});
    }
  }
  communicator.exchange(out, back);
}

void DeviceTransport::broadcast(Communicator& communicator, const Parcels& sent, const Parcels& received) {
  const bool is_root = !sent.empty();
  const auto& range = (is_root ? sent : received).front().range;
  const auto is_other = [&](const StorageParcel& one) { return one.range.id != range.id || one.range.offset != range.offset || one.range.bytes != range.bytes; };
  if ((is_root ? sent.size() + 1 : received.size() + group_.size() - 1) != group_.size() || std::any_of(sent.begin(), sent.end(), is_other)) throw wire::WireError("a broadcast of several messages");
  bring({range});
  communicator.broadcast(tensor_of(range, at::kByte), is_root ? group_.rank() : received.front().member);
}

void DeviceTransport::reduce(const ProcessGroup::Subject& subject, const StorageRange& input, const StorageRange& result) {
  const Team team = all_of(group_);
  if (!shared_.are_possible(team) || !shared_.are_for(subject, static_cast<uint64_t>(input.bytes))) return by_host_.reduce(subject, input, result);
  const bool scatters = subject.what == wire::Collective::kReduceScatter;
  if (input.bytes != (scatters ? result.bytes * static_cast<int64_t>(group_.size()) : result.bytes)) throw wire::WireError("a reduction into another number of elements");
  std::vector<ProcessGroup::Parcel> each;
  team.for_others([&](size_t, size_t member) { each.push_back({member, nullptr, static_cast<size_t>(input.bytes)}); });
  Communicator* const communicator = shared_.meet(team, {subject, each, each});
  if (communicator == nullptr) return by_host_.reduce(subject, input, result);
  bring({input, result});
  const auto type = static_cast<at::ScalarType>(subject.dtype);
  const at::Tensor from = tensor_of(input, type), into = tensor_of(result, type);
  if (scatters) return communicator->reduce_scatter(subject.reduction, from, into);
  if (from.data_ptr() != into.data_ptr()) at::Tensor(into).copy_(from);
  communicator->all_reduce_each({{subject.reduction, into}});
}

void DeviceTransport::reduce_each(const std::vector<StorageReduction>& each) {
  std::vector<DeviceCollectives::Kind> kinds;
  std::vector<StorageRange> ranges;
  for (const auto& [dtype, reduction, range] : each) {
    kinds.push_back({dtype, reduction, static_cast<uint64_t>(range.bytes)});
    ranges.push_back(range);
  }
  const auto data = [&] {
    bring(ranges);
    std::vector<Reduced> reduced;
    for (const auto& [dtype, reduction, range] : each) reduced.push_back({reduction, tensor_of(range, dtype)});
    return reduced;
  };
  if (!shared_.reduce_each(kinds, data)) by_host_.reduce_each(each);
}

void DeviceTransport::bring(const std::vector<StorageRange>& ranges) {
  std::vector<uint64_t> ids;
  for (const auto& range : ranges) {
    ids.push_back(range.id);
    storages_.at(range.id).check_range(static_cast<uint64_t>(range.offset), static_cast<size_t>(range.bytes), "a collective");
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  gang_.make_whole(ids);
  if (gang_.is_on()) gang_.gang().homes().gather(ids, 0);
}

at::Tensor DeviceTransport::tensor_of(const StorageRange& range, at::ScalarType type) {
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor none = at::empty({0}, at::TensorOptions(type).device(device_.where()));
  return at::Tensor(none).set_(storages_.at(range.id).touch(device_), range.offset / item_bytes, {range.bytes / item_bytes}, {1});
}

}  // namespace forebay::worker
