#include "collectives/gang_sums.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "collectives/reduction.h"

namespace forebay::worker {

namespace {

constexpr std::chrono::milliseconds kPartnersPatience = std::chrono::minutes(10);
constexpr auto kEndNoticed = std::chrono::seconds(1);  // of a device's process, by the connection to it
constexpr auto kHeed = std::chrono::milliseconds(100);

wire::Reduction reduction_of(Sharing sharing) {
  switch (sharing) {
    case Sharing::kSum:
      return wire::Reduction::kSum;
    case Sharing::kMean:
      return wire::Reduction::kAverage;
    case Sharing::kMax:
      return wire::Reduction::kMax;
    case Sharing::kMin:
      return wire::Reduction::kMin;
    case Sharing::kCopies:
    case Sharing::kRows:
      break;
  }
  throw std::logic_error("nothing is to be made of copies and rows");
}

}  // namespace

GangSums::GangSums(Gang& gang, const Device& device, GroupHost& host) : gang_(gang), device_(device), host_(host) {
  word_patience_ = kEndNoticed;
  collect_by(host.library());
}

// Workers on other hosts reach this one as they are reached.
std::string GangSums::door_address() {
  for (int place = 1; place < static_cast<int>(gang_.size()); ++place) {
    if (gang_.rank(place).address().rfind("tcp:", 0) == 0) return host_.door_address();
  }
  return gang_.rank(1).address() + ".first";
}

void GangSums::wait_for(std::vector<pollfd>& polled, Clock::time_point until) {
  const size_t count = polled.size();
  for (int place = 1; place < static_cast<int>(gang_.size()); ++place) polled.push_back({gang_.rank(place).socket(), POLLRDHUP, 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(until - Clock::now(), kHeed));
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
  for (int place = 1; place < static_cast<int>(gang_.size()); ++place) {
    if (polled[count + static_cast<size_t>(place) - 1].revents != 0) gang_.rank(place).lose("has ended");
  }
  polled.resize(count);
  gang_.rank(1).heed();
}

void GangSums::meet() {
  if (group_) return;
  const size_t size = gang_.size();
  GroupHost& host = *this;
  group_.emplace(host, size_t{0}, size, kPartnersPatience);
  by_devices_.emplace(*group_, host);
  std::vector<RankAddress> doors{{group_->address(), group_->ticket()}};
  for (size_t rank = 1; rank < size; ++rank) doors.push_back(gang_.rank(static_cast<int>(rank)).open_door(kGangGroup, rank, size, kPartnersPatience.count()));
  for (size_t rank = 0; rank < size; ++rank) {
    for (size_t other = 0; other < size; ++other) {
      if (other == rank) continue;
      if (rank == 0) group_->know(other, doors[other].address, doors[other].ticket);
      else gang_.rank(static_cast<int>(rank)).member(kGangGroup, other, doors[other]);
    }
  }
}

void GangSums::make(const std::vector<Parts>& parts) {
  meet();
  std::vector<Rank::Reduction> told;
  std::vector<DeviceCollectives::Kind> kinds;
  for (const auto& [id, sharing, own] : parts) {
    told.push_back({static_cast<uint8_t>(own.scalar_type()), reduction_of(sharing), id, static_cast<int64_t>(own.nbytes())});
    kinds.push_back({own.scalar_type(), told.back().reduction, own.nbytes()});
  }
  for (int place = 1; place < static_cast<int>(gang_.size()); ++place) {
    gang_.rank(place).reduce_each(kGangGroup, told);
    gang_.rank(place).flush();
  }
  const auto data = [&] {
    std::vector<Reduced> reduced;
    for (const auto& part : parts) reduced.push_back({reduction_of(part.sharing), part.own.view(-1)});
    return reduced;
  };
  try {
    if (!by_devices_->reduce_each(kinds, data)) make_by_host(parts);
  } catch (const GroupEnded& error) {
    throw RankLost(std::string("the devices of this session add up no more: ") + error.what());
  }
}

void GangSums::make_by_host(const std::vector<Parts>& parts) {
  std::vector<Reduced> reduced;
  for (const auto& [id, sharing, own] : parts) {
    const c10::Storage staging = device_.is_host() ? c10::Storage() : device_.allocate_staging(static_cast<int64_t>(own.nbytes()));
    at::Tensor here = device_.is_host() ? own : at::from_blob(staging.mutable_data(), own.sizes(), [staging](void*) {}, own.options().device(at::kCPU));
    if (!here.is_same(own)) here.copy_(own);
    reduced.push_back({reduction_of(sharing), std::move(here)});
  }
  all_reduce_each(*group_, reduced);
  for (size_t index = 0; index < parts.size(); ++index) {
    at::Tensor own = parts[index].own;
    if (!reduced[index].data.is_same(own)) own.copy_(reduced[index].data);
  }
}

void GangSums::leave_device() {
  if (by_devices_) by_devices_->leave_device();
}

// Passes.

void GangSums::tell(const Pass& pass) {
  const auto member = [](int place) { return static_cast<size_t>(place); };
  if (pass.from != 0) gang_.rank(pass.from).exchange(kGangGroup, {{member(pass.to), pass.source, pass.bytes}}, {});
  if (pass.to != 0) gang_.rank(pass.to).exchange(kGangGroup, {}, {{member(pass.from), pass.target, pass.bytes}});
}

void GangSums::carry_out(const Pass& pass, uint8_t* data) {
  const bool sends = pass.from == 0;
  const auto other = static_cast<size_t>(sends ? pass.to : pass.from);
  const std::vector<ProcessGroup::Parcel> parcel{{other, data, static_cast<size_t>(pass.bytes)}}, none;
  try {
    group_->exchange({wire::Collective::kMessage}, sends ? parcel : none, sends ? none : parcel);
  } catch (const GroupEnded& error) {
    throw PassEnded(error.what());
  }
}

void GangSums::end_passes(const std::string& why) noexcept {
  if (group_) group_->end(why);
}

void GangSums::part() {
  if (!group_) return;
  by_devices_.reset();
  group_.reset();
  for (int place = 1; place < static_cast<int>(gang_.size()); ++place) gang_.rank(place).part(kGangGroup);
}

}  // namespace forebay::worker
