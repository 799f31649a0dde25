#include "collectives/collectives.h"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/dtypes.h"
#include "collectives/device_transport.h"
#include "collectives/host_transport.h"

namespace forebay::worker {

namespace {

constexpr const char* kNoGroup =
    "the process group ended when this session moved to another device; end it by destroy_process_group(), and make it anew by init_process_group()";

const char* collective_operator(wire::Collective what) {
  switch (what) {
    case wire::Collective::kBroadcast:
      return "c10d::broadcast";
    case wire::Collective::kAllReduce:
      return "c10d::all_reduce";
    case wire::Collective::kReduce:
      return "c10d::reduce";
    case wire::Collective::kAllGather:
      return "c10d::all_gather";
    case wire::Collective::kGather:
      return "c10d::gather";
    case wire::Collective::kScatter:
      return "c10d::scatter";
    case wire::Collective::kReduceScatter:
      return "c10d::reduce_scatter";
    case wire::Collective::kAllToAll:
      return "c10d::all_to_all";
    case wire::Collective::kMessage:
      return "c10d::send_and_recv";
    case wire::Collective::kBarrier:
      return "c10d::barrier";
  }
  throw wire::WireError("an unknown collective");
}

wire::Collective collective_of(wire::Reader& in) {
  const auto what = static_cast<wire::Collective>(in.u8());
  collective_operator(what);  // throws for one that there is not
  return what;
}

// Throws for one that there is not, and for elements of no type.
wire::Reduction reduction_of(wire::Reader& in, uint8_t dtype) {
  const auto reduction = static_cast<wire::Reduction>(in.u8());
  if (!is_supported(dtype) || reduction > wire::Reduction::kMax) throw wire::WireError("a reduction of unknown kind");
  return reduction;
}

void check_elements(const StorageRange& range, uint8_t dtype) {
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(dtype)));
  if (range.offset % item_bytes != 0 || range.bytes % item_bytes != 0) throw wire::WireError("a reduction of parts of elements");
}

}  // namespace

void Collectives::open_door(wire::Reader& in) {
  const uint64_t request = in.varint();
  const uint64_t number = in.varint();
  const auto rank = static_cast<size_t>(in.bounded(wire::kMembersMax - 1, "a rank"));
  const auto size = static_cast<size_t>(in.bounded(wire::kMembersMax, "the number of a process group's members"));
  const std::chrono::milliseconds patience(in.bounded(wire::kPatienceMsMax, "the patience of a process group"));
  if (rank >= size) throw wire::WireError("rank " + std::to_string(rank) + " of a process group of " + std::to_string(size));
  if (groups_.count(number) != 0) throw wire::WireError("process group " + std::to_string(number) + " exists already");
  has_joined_ = true;
  try {
    if (groups_.size() >= wire::kGroupsMax) throw std::runtime_error("more than " + std::to_string(wire::kGroupsMax) + " process groups; destroy_process_group() ends one");
    Group group{std::make_unique<ProcessGroup>(host_, rank, size, patience), nullptr};
    if (host_.library() == nullptr) group.transport = std::make_unique<HostTransport>(*group.members, host_, device_, storages_, gang_);
    else group.transport = std::make_unique<DeviceTransport>(*group.members, host_, device_, storages_, gang_, /*exchanges=*/number != kGangGroup);
    const ProcessGroup& members = *(groups_[number] = std::move(group)).members;
    wire::Writer head;
    head.reply(wire::Reply::kDoor);
    head.varint(request);
    head.string(members.address());
    head.raw(members.ticket().data(), members.ticket().size());
    replies_.send(head, nullptr, 0);
  } catch (const std::exception&) {
    groups_.erase(number);
    effects_.report(request, *effects_.stop_now("c10d::init_process_group", effects_.next_call()));
  }
}

void Collectives::member(wire::Reader& in) {
  const auto found = groups_.find(in.varint());
  const auto member = static_cast<size_t>(in.bounded(wire::kMembersMax, "a rank"));
  std::string address = in.string();
  Ticket ticket;
  std::memcpy(ticket.data(), in.raw(ticket.size()), ticket.size());
  if (found != groups_.end()) found->second.members->know(member, std::move(address), ticket);
}

void Collectives::part(wire::Reader& in) {
  const auto found = groups_.find(in.varint());
  if (found == groups_.end()) return;
  found->second.members->end("it left by destroy_process_group()");
  groups_.erase(found);
}

void Collectives::leave_device() {
  for (auto& [number, group] : groups_) group.transport->leave_device();
}

void Collectives::end(const std::string& why) {
  for (auto& [number, group] : groups_) group.members->end(why);
}

StorageRange Collectives::range_of(wire::Reader& in) {
  StorageRange range;
  range.id = in.varint();
  range.offset = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "an offset"));
  range.bytes = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the size of a message"));
  storages_.at(range.id);  // throws where there is none
  return range;
}

std::vector<StorageParcel> Collectives::parcels_of(wire::Reader& in) {
  std::vector<StorageParcel> parcels(in.count(wire::kItemsMax, "the number of messages"));
  for (auto& parcel : parcels) {
    parcel.member = static_cast<size_t>(in.bounded(wire::kMembersMax, "a rank"));
    parcel.range = range_of(in);
  }
  return parcels;
}

void Collectives::exchange(wire::Reader& in) {
  const uint64_t number = in.varint();
  const auto what = collective_of(in);
  const auto sent = parcels_of(in), received = parcels_of(in);
  std::vector<StorageRange> ranges;
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& parcel : *parcels) ranges.push_back(parcel.range);
  }
  collect(what, number, ranges, [&](Transport& transport) { transport.exchange({what}, sent, received); });
}

void Collectives::reduce(wire::Reader& in) {
  const uint64_t number = in.varint();
  const auto what = collective_of(in);
  const uint8_t dtype = in.u8();
  const auto reduction = reduction_of(in, dtype);
  const StorageRange input = range_of(in), result = range_of(in);
  for (const auto& range : {input, result}) check_elements(range, dtype);
  collect(what, number, {input, result}, [&](Transport& transport) { transport.reduce({what, dtype, reduction}, input, result); });
}

void Collectives::reduce_each(wire::Reader& in) {
  const uint64_t number = in.varint();
  std::vector<StorageReduction> each(in.count(wire::kItemsMax, "the number of reductions"));
  std::vector<StorageRange> ranges;
  for (auto& [dtype, reduction, range] : each) {
    const uint8_t told = in.u8();
    reduction = reduction_of(in, told);
    dtype = static_cast<c10::ScalarType>(told);
    check_elements(range = range_of(in), told);
    ranges.push_back(range);
  }
  collect(wire::Collective::kAllReduce, number, ranges, [&](Transport& transport) { transport.reduce_each(each); });
}

void Collectives::collect(wire::Collective what, uint64_t number, const std::vector<StorageRange>& ranges, const std::function<void(Transport&)>& carry_out) {
  const uint64_t sequence = effects_.begin_call();
  gang_.settle();
  const auto found = groups_.find(number);
  const auto end_group = [&](const std::string& why) {
    if (found != groups_.end()) found->second.members->end(why);
  };
  if (!effects_.stopped()) {
    Cause before = effects_.lost();
    for (const auto& range : ranges) before = before ? before : storages_.at(range.id).cause();
    if (before) effects_.announced(effects_.stop_after(*before));
  }
  if (const Cause& stopped = effects_.stopped()) return end_group("it stopped at " + stopped->op + ": " + stopped->message);
  try {
    if (found == groups_.end()) throw CommandError(wire::FailureCode::kOperator, kNoGroup);
    const TimedCall timed(timing_, sequence);
    carry_out(*found->second.transport);
  } catch (const wire::WireError&) {
    throw;
  } catch (const std::exception& error) {
    end_group(std::string("it failed: ") + error.what());
    effects_.announced(effects_.stop_now(collective_operator(what), sequence));
  }
}

}  // namespace forebay::worker
