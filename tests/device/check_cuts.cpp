// Processes that hold their collectives, say how far they are, and go on until none is behind another, in all orders that chance gives them: they come
// to a cut between the same collectives, or give up, and their programs end.
//
// `cut_schedules FIRST COUNT` plays schedules with so many seeds, and says how many cuts were found; it ends with 1 at the first wrong one.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include "distributed/progress.h"

namespace {

using forebay::Channel;
using forebay::CutSearch;
using forebay::Progress;

constexpr size_t kStepsMax = 100'000;

// What all processes do together, in one order: each does its parts in that order, as programs without deadlocks do.
struct Work {
  Channel channel;
  std::vector<size_t> members;
};

struct Member {
  std::vector<size_t> work;  // numbers of what it takes part in
  size_t done = 0;
  Progress progress;
  forebay::Counts targets;
  bool holds = false;
  bool has_told = false;
};

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : chance_(seed), members_(2 + below(4)) {
    make_groups();
    for (size_t count = 20 + below(60); count > 0; --count) add_work();
  }

  // Whether a cut was found; nothing where the search gave up. Ends the program at a wrong one.
  std::optional<bool> play() {
    const size_t before = below(work_.size() * 2);
    for (size_t step = 0; step < before; ++step) go_on(members_[below(members_.size())]);
    CutSearch search;
    for (size_t step = 0; step < kStepsMax; ++step) {
      Member& member = members_[below(members_.size())];
      if (!member.has_told && !member.holds && below(3) == 0) member.holds = true;
      if (below(2) == 0) go_on(member);
      if (member.holds && !member.has_told && !member.progress.is_behind(member.targets)) {
        member.has_told = true;
      }
      if (std::any_of(members_.begin(), members_.end(), [](const Member& one) { return !one.has_told; })) continue;
      switch (search.conclude(all())) {
        case CutSearch::Verdict::kFound:
          return is_cut();
        case CutSearch::Verdict::kImpossible:
          return std::nullopt;
        case CutSearch::Verdict::kGoOn:
          for (Member& one : members_) {
            one.targets = forebay::counts_of(packed(search.targets()));
            one.has_told = false;
          }
      }
    }
    std::puts("processes wait for each other");
    return false;
  }

 private:
  size_t below(size_t most) { return std::uniform_int_distribution<size_t>(0, most - 1)(chance_); }

  void make_groups() {
    groups_.emplace_back();
    for (size_t rank = 0; rank < members_.size(); ++rank) groups_.back().push_back(rank);
    for (size_t count = below(4); count > 0; --count) {
      std::vector<size_t> group;
      for (size_t rank = 0; rank < members_.size(); ++rank) {
        if (below(2) == 0) group.push_back(rank);
      }
      if (group.size() > 1) groups_.push_back(group);
    }
    for (size_t number = 0; number < groups_.size(); ++number) {
      for (size_t rank = 0; rank < groups_[number].size(); ++rank) {
        auto& membership = members_[groups_[number][rank]].progress.groups["group " + std::to_string(number)];
        membership.rank = rank;
        membership.size = groups_[number].size();
        for (size_t other = 0; other < membership.size; ++other) {
          if (other != rank) membership.met.insert(other);
        }
      }
    }
  }

  void add_work() {
    const size_t number = below(groups_.size());
    const auto& group = groups_[number];
    Work work{{"group " + std::to_string(number)}, group};
    if (below(3) == 0) {
      const size_t from = below(group.size()), to = (from + 1 + below(group.size() - 1)) % group.size();
      work.channel.from = from;
      work.channel.to = to;
      work.members = {group[from], group[to]};
    }
    for (const size_t rank : work.members) members_[rank].work.push_back(work_.size());
    work_.push_back(work);
  }

  void go_on(Member& member) {
    if (member.done == member.work.size() || (member.holds && !member.progress.is_behind(member.targets))) return;
    ++member.progress.recorded[work_[member.work[member.done++]].channel];
  }

  std::vector<Progress> all() const {
    std::vector<Progress> all;
    for (const Member& member : members_) all.push_back(Progress::of(member.progress.packed()));
    return all;
  }

  // Whatever one member has done, all others that take part in it have.
  bool is_cut() const {
    for (size_t number = 0; number < work_.size(); ++number) {
      size_t done = 0;
      for (const size_t rank : work_[number].members) {
        const Member& member = members_[rank];
        done += std::count(member.work.begin(), member.work.begin() + static_cast<std::ptrdiff_t>(member.done), number);
      }
      if (done != 0 && done != work_[number].members.size()) {
        std::printf("work %zu was done by %zu of %zu\n", number, done, work_[number].members.size());
        return false;
      }
    }
    return true;
  }

  std::mt19937_64 chance_;
  std::vector<Member> members_;
  std::vector<std::vector<size_t>> groups_;
  std::vector<Work> work_;
};

}  // namespace

int main(int, char** arguments) {
  const uint64_t first = std::strtoull(arguments[1], nullptr, 10), count = std::strtoull(arguments[2], nullptr, 10);
  uint64_t found = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const auto is_cut = Schedule(seed).play();
    if (is_cut == false) {
      std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
      return 1;
    }
    found += is_cut.has_value();
  }
  std::printf("%llu\n", static_cast<unsigned long long>(found));
}
