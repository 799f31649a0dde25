// A session that is a member of process groups: what torch.distributed's collectives do with its storages.
#include <algorithm>

#include <ATen/ops/from_blob.h>

#include "base/dtypes.h"
#include "collectives/reduction.h"
#include "session/session.h"

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

}  // namespace

// Bytes of a storage on the host: the storage's own where it lies there, else a copy. They outlive a parking in the middle of an exchange.
class Session::HostRange {
 public:
  HostRange(Session& session, const StorageRange& range) : session_(session), range_(range) {
    Entry& entry = session.storages_.at(range.id);
    session.check_range(entry, static_cast<uint64_t>(range.offset), static_cast<size_t>(range.bytes), "a collective");
    const auto& memory = entry.touch(session.device_);
    if (session.device_.is_host()) {
      memory_ = memory;
      at_ = range.offset;
    } else {
      memory_ = session.device_.allocate_staging(range.bytes);
      session.device_.copy(memory_, 0, memory, range.offset, range.bytes);
    }
  }

  uint8_t* data() const { return range_.bytes == 0 ? nullptr : static_cast<uint8_t*>(memory_.mutable_data()) + at_; }
  int64_t bytes() const { return range_.bytes; }

  // What was written there becomes the storage's, which may have come to another device of the gang by a parking.
  void put_back() const {
    Entry& entry = session_.storages_.at(range_.id);
    if (entry.home() != 0) return session_.gang_->write(range_.id, entry, range_.offset, data(), range_.bytes);
    const auto& memory = entry.touch(session_.device_);
    if (!memory.is_alias_of(memory_)) session_.device_.copy(memory, range_.offset, memory_, at_, range_.bytes);
  }

 private:
  Session& session_;
  StorageRange range_;
  c10::Storage memory_{nullptr};
  int64_t at_ = 0;
};

void Session::open_door(wire::Reader& in) {
  const uint64_t request = in.varint();
  const uint64_t number = in.varint();
  const auto rank = static_cast<size_t>(in.bounded(wire::kMembersMax - 1, "a rank"));
  const auto size = static_cast<size_t>(in.bounded(wire::kMembersMax, "the number of a process group's members"));
  const std::chrono::milliseconds patience(in.bounded(wire::kPatienceMsMax, "the patience of a process group"));
  if (rank >= size) throw wire::WireError("rank " + std::to_string(rank) + " of a process group of " + std::to_string(size));
  if (groups_.count(number) != 0) throw wire::WireError("process group " + std::to_string(number) + " exists already");
  try {
    if (groups_.size() >= wire::kGroupsMax) throw std::runtime_error("more than " + std::to_string(wire::kGroupsMax) + " process groups; destroy_process_group() ends one");
    const auto& group = groups_[number] = std::make_unique<ProcessGroup>(group_host_, rank, size, patience);
    wire::Writer head;
    head.reply(wire::Reply::kDoor);
    head.varint(request);
    head.string(group->address());
    head.raw(group->ticket().data(), group->ticket().size());
    replies_.send(head, nullptr, 0);
  } catch (const std::exception&) {
    groups_.erase(number);
    tell(request, *stop_now("c10d::init_process_group", sequence_));
  }
}

void Session::member(wire::Reader& in) {
  const auto found = groups_.find(in.varint());
  const auto member = static_cast<size_t>(in.bounded(wire::kMembersMax, "a rank"));
  std::string address = in.string();
  Ticket ticket;
  std::memcpy(ticket.data(), in.raw(ticket.size()), ticket.size());
  if (found != groups_.end()) found->second->know(member, std::move(address), ticket);
}

void Session::part(wire::Reader& in) {
  const auto found = groups_.find(in.varint());
  if (found == groups_.end()) return;
  found->second->end("it left by destroy_process_group()");
  groups_.erase(found);
}

void Session::end_groups(const std::string& why) {
  for (auto& [number, group] : groups_) group->end(why);
}

StorageRange Session::range_of(wire::Reader& in) {
  StorageRange range;
  range.id = in.varint();
  range.offset = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "an offset"));
  range.bytes = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the size of a message"));
  storages_.at(range.id);  // throws where there is none
  return range;
}

std::vector<std::pair<size_t, StorageRange>> Session::parcels_of(wire::Reader& in) {
  std::vector<std::pair<size_t, StorageRange>> parcels(in.count(wire::kItemsMax, "the number of messages"));
  for (auto& [member, range] : parcels) {
    member = static_cast<size_t>(in.bounded(wire::kMembersMax, "a rank"));
    range = range_of(in);
  }
  return parcels;
}

void Session::exchange(wire::Reader& in) {
  const uint64_t number = in.varint();
  const auto what = collective_of(in);
  const auto sent = parcels_of(in), received = parcels_of(in);
  std::vector<StorageRange> ranges;
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& parcel : *parcels) ranges.push_back(parcel.second);
  }
  collect(what, number, ranges, [&](ProcessGroup& group, const std::vector<HostRange>& bytes) {
    std::vector<ProcessGroup::Parcel> out, back;
    for (size_t index = 0; index < bytes.size(); ++index) {
      const bool is_sent = index < sent.size();
      const size_t member = is_sent ? sent[index].first : received[index - sent.size()].first;
      if (member >= group.size()) throw wire::WireError("rank " + std::to_string(member) + " of a process group of " + std::to_string(group.size()));
      (is_sent ? out : back).push_back({member, bytes[index].data(), static_cast<size_t>(bytes[index].bytes())});
    }
    group.exchange({what}, out, back);
    group_host_.wait_for_lease();
    for (size_t index = sent.size(); index < bytes.size(); ++index) bytes[index].put_back();
  });
}

void Session::reduce(wire::Reader& in) {
  const uint64_t number = in.varint();
  const auto what = collective_of(in);
  const uint8_t dtype = in.u8();
  const auto reduction = static_cast<wire::Reduction>(in.u8());
  if (!is_supported(dtype) || reduction > wire::Reduction::kMax) throw wire::WireError("a reduction of unknown kind");
  const auto type = static_cast<c10::ScalarType>(dtype);
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(type));
  const StorageRange input = range_of(in), result = range_of(in);
  for (const auto& range : {input, result}) {
    if (range.offset % item_bytes != 0 || range.bytes % item_bytes != 0) throw wire::WireError("a reduction of parts of elements");
  }
  const bool scatters = what == wire::Collective::kReduceScatter;
  collect(what, number, {input, result}, [&](ProcessGroup& group, const std::vector<HostRange>& bytes) {
    if (input.bytes != (scatters ? result.bytes * static_cast<int64_t>(group.size()) : result.bytes)) throw wire::WireError("a reduction into another number of elements");
    const auto flat = [&](const HostRange& range) { return at::from_blob(range.data(), {range.bytes() / item_bytes}, at::TensorOptions(type)); };
    const ProcessGroup::Subject subject{what, dtype, reduction};
    const at::Tensor target = flat(bytes[1]);
    if (scatters) {
      reduce_scatter(group, subject, flat(bytes[0]), target);
    } else {
      if (bytes[0].data() != bytes[1].data()) target.copy_(flat(bytes[0]));
      all_reduce(group, subject, target);
    }
    group_host_.wait_for_lease();
    bytes[1].put_back();
  });
}

// Nothing is exchanged where something failed before: the other members hear why.
void Session::collect(wire::Collective what, uint64_t number, const std::vector<StorageRange>& ranges,
                      const std::function<void(ProcessGroup&, const std::vector<HostRange>&)>& carry_out) {
  end_segment();
  const uint64_t sequence = sequence_++;
  if (gang_ && !stopped_) settle_gang();
  const auto found = groups_.find(number);
  if (!stopped_) {
    Cause before = lost_;
    for (const auto& range : ranges) before = before ? before : storages_.at(range.id).cause();
    if (before) announced(stop_after(*before));
  }
  if (stopped_) {
    if (found != groups_.end()) found->second->end("it stopped at " + stopped_->op + ": " + stopped_->message);
    return;
  }
  try {
    if (found == groups_.end()) throw CommandError(wire::FailureCode::kOperator, kNoGroup);
    const TimedCall timed(timing_, sequence);
    const auto bytes = host_ranges(ranges);
    if (device_.computes()) carry_out(*found->second, bytes);
  } catch (const wire::WireError&) {
    throw;
  } catch (const std::exception& error) {
    if (found != groups_.end()) found->second->end(std::string("it failed: ") + error.what());
    announced(stop_now(collective_operator(what), sequence));
  }
}

std::vector<Session::HostRange> Session::host_ranges(const std::vector<StorageRange>& ranges) {
  std::vector<uint64_t> ids;
  for (const auto& range : ranges) ids.push_back(range.id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  make_whole(ids);
  if (gang_) gang_->gather(ids, 0);
  std::vector<HostRange> result;
  if (!device_.computes()) return result;
  for (const auto& range : ranges) result.emplace_back(*this, range);
  if (!device_.is_host()) device_.synchronize();
  return result;
}

}  // namespace forebay::worker
