#include "collectives/reduction.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include "base/memory.h"
#include "collectives/team.h"

namespace forebay::worker {

namespace {

using wire::Reduction;

constexpr int64_t kWholeBytes = 16 << 10;  // so little is sent whole to all, which reduce it themselves: one way, not there and back
constexpr int64_t kPartBytes = 256 << 10;  // of a part that is on its way: it stays in the caches

uint8_t* data_of(const at::Tensor& data) { return static_cast<uint8_t*>(data.mutable_data_ptr()); }
size_t data_bytes(const at::Tensor& data) { return static_cast<size_t>(data.numel()) * data.element_size(); }

void reduce_two(Reduction reduction, at::Tensor& result, const at::Tensor& one, const at::Tensor& other) {
  const bool truths = result.scalar_type() == at::kBool;
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
      truths ? at::logical_or_out(result, one, other) : at::add_out(result, one, other);
      return;
    case Reduction::kProduct:
      truths ? at::logical_and_out(result, one, other) : at::mul_out(result, one, other);
      return;
    case Reduction::kMin:
      at::minimum_out(result, one, other);
      return;
    case Reduction::kMax:
      at::maximum_out(result, one, other);
      return;
  }
  throw wire::WireError("an unknown reduction");
}

// Beside what the session may hold: a sum must not fail for want of it.
at::Tensor room_for(int64_t elements, at::ScalarType type) {
  const auto memory = std::make_shared<c10::DataPtr>(allocate_uncounted_on_host(elements * static_cast<int64_t>(c10::elementSize(type))));
  return at::from_blob(memory->get(), {elements}, [memory](void*) {}, at::TensorOptions(type));
}

// Room for what comes from the others, used again for each piece.
class PeerParts {
 public:
  PeerParts(const Team& team, const at::Tensor& like, int64_t elements) : own_(team.own), rooms_(team.size()) {
    team.for_others([&](size_t place, size_t) { rooms_[place] = room_for(elements, like.scalar_type()); });
  }

  at::Tensor of(size_t place, int64_t elements) const { return rooms_[place].narrow(0, 0, elements); }

  // Of the others' parts, as they came, and `own`; `result` may be `own`. A mean is left to be divided.
  void reduce(Reduction reduction, const at::Tensor& own, at::Tensor result) const {
    const auto part = [&](size_t place) { return place == own_ ? own : of(place, own.numel()); };
    if (rooms_.size() == 1) {
      if (!result.is_same(own)) result.copy_(own);
      return;
    }
    at::Tensor so_far = part(0), scratch = part(own_ == 0 ? 1 : 0);  // its values are read where they are written over
    for (size_t place = 1; place < rooms_.size(); ++place) {
      at::Tensor target = place + 1 == rooms_.size() ? result : scratch;
      reduce_two(reduction, target, so_far, part(place));
      so_far = target;
    }
  }

 private:
  size_t own_;
  std::vector<at::Tensor> rooms_;
};

void finish(Reduction reduction, at::Tensor result, size_t members) {
  if (reduction == Reduction::kAverage && members > 1) result.div_(static_cast<int64_t>(members));
}

// What goes to others and comes from them at once.
struct Messages {
  std::vector<ProcessGroup::Parcel> sent;
  std::vector<ProcessGroup::Parcel> received;

  void send(size_t member, const at::Tensor& data) { sent.push_back({member, data_of(data), data_bytes(data)}); }
  void receive(size_t member, const at::Tensor& data) { received.push_back({member, data_of(data), data_bytes(data)}); }
  void exchange(ProcessGroup& group, const ProcessGroup::Subject& subject) {
    group.exchange(subject, sent, received);
    sent.clear();
    received.clear();
  }
};

void reduce_whole(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& data) {
  const Team team = all_of(group);
  const PeerParts parts(team, data, data.numel());
  Messages messages;
  team.for_others([&](size_t place, size_t member) {
    messages.send(member, data);
    messages.receive(member, parts.of(place, data.numel()));
  });
  messages.exchange(group, subject);
  parts.reduce(subject.reduction, data, data);
  finish(subject.reduction, data, group.size());
}

// The elements that one member of a team reduces of `data`.
at::Tensor part_of(const at::Tensor& data, const Team& team, size_t place) {
  const auto members = static_cast<int64_t>(team.size());
  const int64_t each = (data.numel() + members - 1) / members, start = std::min(static_cast<int64_t>(place) * each, data.numel());
  return data.narrow(0, start, std::min(each, data.numel() - start));
}

// Has each member of a team reduce its part of each piece of the data, do with it what is to be done, and tell the others.
using Middle = std::function<void(const at::Tensor& own)>;
void reduce_in_pieces(ProcessGroup& group, const ProcessGroup::Subject& subject, const Team& team, const at::Tensor& data, const Middle& middle) {
  const int64_t piece = std::max<int64_t>(kPartBytes / static_cast<int64_t>(data.element_size()), 1) * static_cast<int64_t>(team.size());
  const int64_t pieces = (data.numel() + piece - 1) / piece;
  const auto piece_of = [&](int64_t number) { return data.narrow(0, number * piece, std::min(piece, data.numel() - number * piece)); };
  const PeerParts parts(team, data, part_of(data.narrow(0, 0, std::min(piece, data.numel())), team, 0).numel());
  Messages messages;
  const auto scatter = [&](int64_t number) {
    const at::Tensor values = piece_of(number);
    const int64_t own = part_of(values, team, team.own).numel();
    team.for_others([&](size_t place, size_t member) {
      messages.send(member, part_of(values, team, place));
      messages.receive(member, parts.of(place, own));
    });
  };
  if (pieces > 0) scatter(0);
  messages.exchange(group, subject);
  for (int64_t number = 0; number < pieces; ++number) {
    const at::Tensor values = piece_of(number), own = part_of(values, team, team.own);
    parts.reduce(subject.reduction, own, own);
    middle(own);
    team.for_others([&](size_t place, size_t member) {
      messages.send(member, own);
      messages.receive(member, part_of(values, team, place));
    });
    if (number + 1 < pieces) scatter(number + 1);  // with it: a wait less
    messages.exchange(group, subject);
  }
}

// This one's host, and those at its place of all hosts. None where hosts have different numbers of members, or one alone.
std::optional<std::pair<Team, Team>> teams_by_host(ProcessGroup& group) {
  if (group.size() < 4) return std::nullopt;
  const auto& hosts = group.hosts();
  const size_t each = hosts.front().size();
  if (hosts.size() == 1 || each == 1 || std::any_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host.size() != each; })) return std::nullopt;
  const auto own = std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return std::find(host.begin(), host.end(), group.rank()) != host.end(); });
  Team within{*own, static_cast<size_t>(std::find(own->begin(), own->end(), group.rank()) - own->begin())};
  Team across{{}, static_cast<size_t>(own - hosts.begin())};
  for (const auto& host : hosts) across.members.push_back(host[within.own]);
  return std::pair(std::move(within), std::move(across));
}

}  // namespace

void all_reduce(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& data) {
  if (static_cast<int64_t>(data_bytes(data)) <= kWholeBytes) return reduce_whole(group, subject, data);
  const auto divide = [&](const at::Tensor& own) { finish(subject.reduction, own, group.size()); };
  const auto teams = teams_by_host(group);
  if (!teams) return reduce_in_pieces(group, subject, all_of(group), data, divide);
  // Each host's own members first: so across hosts goes no more than of one member of each.
  reduce_in_pieces(group, subject, teams->first, data, [&](const at::Tensor& own) { reduce_in_pieces(group, subject, teams->second, own, divide); });
}

void all_reduce_each(ProcessGroup& group, const std::vector<Reduced>& each) {
  std::map<std::pair<at::ScalarType, Reduction>, std::vector<at::Tensor>> small;
  const auto reduce = [&](Reduction reduction, const at::Tensor& data) {
    all_reduce(group, {wire::Collective::kAllReduce, static_cast<uint8_t>(data.scalar_type()), reduction}, data);
  };
  for (const auto& [reduction, data] : each) {
    if (static_cast<int64_t>(data_bytes(data)) <= kPartBytes) small[{data.scalar_type(), reduction}].push_back(data);
    else reduce(reduction, data);
  }
  for (const auto& [kind, parts] : small) {
    if (parts.size() == 1) {
      reduce(kind.second, parts.front());
      continue;
    }
    const auto elements = std::accumulate(parts.begin(), parts.end(), int64_t{0}, [](int64_t sum, const at::Tensor& part) { return sum + part.numel(); });
    const at::Tensor together = room_for(elements, kind.first);
    const auto move = [&](bool there) {
      int64_t done = 0;
      for (at::Tensor part : parts) {
        at::Tensor place = together.narrow(0, done, part.numel());
        there ? place.copy_(part) : part.copy_(place);
        done += part.numel();
      }
    };
    move(true);
    reduce(kind.second, together);
    move(false);
  }
}

void reduce_scatter(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& input, const at::Tensor& result) {
  const int64_t piece = std::min(std::max<int64_t>(kPartBytes / static_cast<int64_t>(input.element_size()), 1), std::max<int64_t>(result.numel(), 1));
  const Team team = all_of(group);
  const PeerParts parts(team, input, piece);
  int64_t done = 0;
  do {
    const int64_t count = std::min(piece, result.numel() - done);
    const auto part = [&](size_t member) { return input.narrow(0, static_cast<int64_t>(member) * result.numel() + done, count); };
    Messages messages;
    team.for_others([&](size_t place, size_t member) {
      messages.send(member, part(member));
      messages.receive(member, parts.of(place, count));
    });
    messages.exchange(group, subject);
    const at::Tensor made = result.narrow(0, done, count);
    parts.reduce(subject.reduction, part(group.rank()), made);
    finish(subject.reduction, made, group.size());
    done += count;
  } while (done < result.numel());
}

}  // namespace forebay::worker
