#include "collectives/device_collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>
#include <utility>

#include "collectives/rendezvous.h"

namespace forebay::worker {

namespace {

constexpr size_t kDeviceBytesMax = 96;

// Of a back end, in this process.
std::string fresh_name() {
  static std::atomic<uint64_t> made{0};
  return "forebay-" + std::to_string(++made);
}

// FNV-1a.
uint64_t checksum_of(const std::vector<DeviceCollectives::Kind>& kinds) {
  uint64_t sum = 0xcbf29ce484222325;
  const auto add = [&sum](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) sum = (sum ^ ((value >> (8 * byte)) & 0xff)) * 0x100000001b3;
  };
  for (const auto& kind : kinds) {
    add(static_cast<uint64_t>(kind.dtype));
    add(static_cast<uint64_t>(kind.reduction));
    add(kind.bytes);
  }
  return sum;
}

}  // namespace

struct DeviceCollectives::Stand {
  uint64_t is_ready = 0;  // under a lease, with what is to be done
  uint64_t declines = 0;
  uint64_t number = 0;    // as in Shared
  uint64_t last = 0;
  uint64_t bytes = 0;     // of its largest message
  uint64_t checksum = 0;
  std::array<char, kDeviceBytesMax> device{};
};

DeviceCollectives::DeviceCollectives(ProcessGroup& group, GroupHost& host) : group_(group), host_(host), library_(host.library()) {}

bool DeviceCollectives::are_possible(const Team& team) const {
  bool same = library_ != nullptr && team.size() > 1;
  team.for_others([&](size_t, size_t member) { same = same && group_.offers_the_same(member); });
  return same;
}

bool DeviceCollectives::are_for(const ProcessGroup::Subject& subject, uint64_t bytes) const {
  switch (subject.what) {
    case wire::Collective::kAllReduce:
    case wire::Collective::kReduce:
    case wire::Collective::kReduceScatter:
      return bytes >= library_->bytes_min() && Communicator::reduces(static_cast<at::ScalarType>(subject.dtype), subject.reduction);
    case wire::Collective::kBroadcast:
    case wire::Collective::kAllGather:
      return bytes >= library_->bytes_min();
    case wire::Collective::kGather:
    case wire::Collective::kScatter:
    case wire::Collective::kAllToAll:
      return true;  // a member knows its own messages alone
    case wire::Collective::kMessage:
      return bytes >= message_bytes_min();
    case wire::Collective::kBarrier:
      return false;
  }
  return false;
}

Communicator* DeviceCollectives::meet(const Team& team, const Call& call) {
  Shared& shared = shared_[team.members];
  Stand own;
  own.checksum = call.checksum;
  library_->device().copy(own.device.data(), own.device.size() - 1);
  for (const auto* parcels : {&call.sent, &call.received}) {
    for (const auto& parcel : *parcels) own.bytes = std::max<uint64_t>(own.bytes, parcel.bytes);
  }
  while (true) {
    host_.wait_for_lease();
    group_.announce(call.subject, team.members, call.sent, call.received);
    const ProcessGroup::Undisturbed undisturbed(group_);
    own.is_ready = host_.holds_lease();
    own.declines = shared.declined;
    own.number = shared.number;
    own.last = shared.last;
    const auto stands = stands_of(team, own);
    const auto all = [&](const auto& is) { return std::all_of(stands.begin(), stands.end(), is); };
    if (!all([](const Stand& one) { return one.is_ready != 0; })) continue;
    host_.wait_for_lease();  // it is there: the device works from here on
    if (!all([&](const Stand& one) { return one.checksum == own.checksum; })) throw GroupEnded("the members of this process group reduce different tensors");
    if (!all([](const Stand& one) { return one.declines == 0; }) || !have_own_devices(stands)) return nullptr;
    const uint64_t bytes_min = call.subject.what == wire::Collective::kMessage ? 0 : library_->bytes_min();
    if (all([&](const Stand& one) { return one.bytes < bytes_min; })) return nullptr;
    if (shared.number == 0 || !all([&](const Stand& one) { return one.number == shared.number; })) make(team, stands, shared);
    return shared.communicator.get();
  }
}

std::vector<DeviceCollectives::Stand> DeviceCollectives::stands_of(const Team& team, const Stand& own) {
  std::vector<Stand> stands(team.size());
  stands[team.own] = own;
  std::vector<ProcessGroup::Parcel> sent, received;
  const auto bytes_of = [&](size_t place) { return reinterpret_cast<uint8_t*>(&stands[place]); };
  team.for_others([&](size_t place, size_t member) {
    sent.push_back({member, bytes_of(team.own), sizeof(Stand)});
    received.push_back({member, bytes_of(place), sizeof(Stand)});
  });
  group_.exchange({wire::Collective::kBarrier}, sent, received);
  return stands;
}

bool DeviceCollectives::have_own_devices(const std::vector<Stand>& stands) const {
  std::set<std::string> devices;
  for (const Stand& stand : stands) {
    const std::string device(stand.device.data(), ::strnlen(stand.device.data(), stand.device.size()));
    if (!device.empty() && !devices.insert(device).second) return false;
  }
  return true;
}

void DeviceCollectives::make(const Team& team, const std::vector<Stand>& stands, Shared& shared) {
  shared.communicator.reset();
  shared.number = 0;
  for (const Stand& stand : stands) shared.last = std::max(shared.last, stand.last);
  ++shared.last;
  const std::string name = fresh_name();
  std::string why;
  try {
    why = open_together(library_, group_, team, name);
  } catch (const wire::WireError&) {
    throw GroupEnded("a member of the process group broke the protocol");
  }
  if (why.empty()) {
    shared.communicator = std::make_unique<Communicator>(*library_, group_, team, name);
    shared.number = shared.last;
    return;
  }
  library_->end(name);
  library_->decline(why);
  shared.declined = true;
}

bool DeviceCollectives::reduce_each(const std::vector<Kind>& kinds, const std::function<std::vector<Reduced>()>& data) {
  const Team team = all_of(group_);
  if (!are_possible(team)) return false;
  uint64_t bytes = 0;
  for (const auto& kind : kinds) {
    bytes += kind.bytes;
    if (!Communicator::reduces(kind.dtype, kind.reduction)) return false;
  }
  if (bytes < library_->bytes_min()) return false;
  Call call{{wire::Collective::kAllReduce, static_cast<uint8_t>(kinds.front().dtype), kinds.front().reduction}, {}, {}, checksum_of(kinds)};
  team.for_others([&](size_t, size_t member) {
    for (auto* parcels : {&call.sent, &call.received}) parcels->push_back({member, nullptr, bytes});
  });
  Communicator* const communicator = meet(team, call);
  if (communicator == nullptr) return false;
  communicator->all_reduce_each(data());
  return true;
}

void DeviceCollectives::leave_device() {
  for (auto& [members, shared] : shared_) {
    shared.communicator.reset();
    shared.number = 0;
  }
}

}  // namespace forebay::worker
