#include "collectives/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <forebay/wire.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/clock.h"

namespace forebay::worker {

namespace {

constexpr auto kOpenPatience = std::chrono::minutes(2);  // a library finds its way between many devices meanwhile
constexpr auto kAgain = std::chrono::milliseconds(1);
constexpr uint64_t kStoreBytesMax = uint64_t{16} << 20;  // that a member may write at once
constexpr size_t kKeysMax = 1 << 16;
const std::string kTooLong = "no end of it within two minutes";

// A library's `open` on a thread of its own, which may outlive this where the library waits for members that do not come.
class Opening {
 public:
  Opening(const std::shared_ptr<DeviceLibrary>& library, const std::string& name) : state_(std::make_shared<State>()) {
    std::thread([library, name, state = state_] {
      std::string why;
      try {
        library->open(name);
      } catch (const std::exception& error) {
        why = error.what();
        if (why.empty()) why = "it failed";
      }
      const std::lock_guard lock(state->mutex);
      state->ended = std::move(why);
    }).detach();
  }

  // Nothing while it goes on; empty where it is open, else why not.
  std::optional<std::string> ended() const {
    const std::lock_guard lock(state_->mutex);
    return state_->ended;
  }

 private:
  struct State {
    std::mutex mutex;
    std::optional<std::string> ended;
  };
  std::shared_ptr<State> state_;
};

// This member's store, and what of it the others have.
class SharedStore {
 public:
  explicit SharedStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  // What was written since.
  std::vector<uint8_t> take_new() {
    wire::Writer keys;
    uint64_t count = 0;
    for (const auto& key : store_->listKeys()) {
      if (!known_.insert(key).second) continue;
      const auto value = store_->get(key);
      keys.string(key);
      keys.string({reinterpret_cast<const char*>(value.data()), value.size()});
      ++count;
    }
    if (count == 0) return {};
    wire::Writer all;
    all.varint(count);
    all.raw(keys.bytes().data(), keys.size());
    return all.bytes();
  }

  // What another member wrote. Throws wire::WireError for what is no such thing.
  void put(const std::vector<uint8_t>& told) {
    wire::Reader in(told.data(), told.size());
    for (size_t left = in.count(kKeysMax, "the number of keys"); left > 0; --left) {
      const std::string key = in.string(kStoreBytesMax), value = in.string(kStoreBytesMax);
      known_.insert(key);
      store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::set<std::string> known_;
};

enum class Standing : uint64_t { kOpening, kOpen, kFailed };

// What members tell each other again and again; so many bytes of their stores, or of a sentence why it failed, follow.
struct Report {
  uint64_t bytes = 0;
  Standing standing = Standing::kOpening;
};

class Rendezvous {
 public:
  Rendezvous(ProcessGroup& group, const Team& team) : group_(group), team_(team), reports_(team.size()), texts_(team.size()) {}

  // What each member says, by its place; `own` goes to the others.
  void tell(Standing standing, std::vector<uint8_t> own) {
    reports_[team_.own] = {own.size(), standing};
    texts_[team_.own] = std::move(own);
    exchange([this](size_t place) { return std::pair(reinterpret_cast<uint8_t*>(&reports_[place]), sizeof(Report)); });
    team_.for_others([this](size_t place, size_t) {
      if (reports_[place].bytes > kStoreBytesMax) throw wire::WireError("too much of a member's store");
      texts_[place].resize(reports_[place].bytes);
    });
    exchange([this](size_t place) { return std::pair(texts_[place].data(), texts_[place].size()); });
  }
  const Report& report(size_t place) const { return reports_[place]; }
  const std::vector<uint8_t>& text(size_t place) const { return texts_[place]; }
  bool all(Standing standing) const {
    return std::all_of(reports_.begin(), reports_.end(), [standing](const Report& one) { return one.standing == standing; });
  }
  // Why a member has failed; none if none has.
  std::optional<std::string> failure() const {
    for (size_t place = 0; place < team_.size(); ++place) {
      if (reports_[place].standing == Standing::kFailed) return "rank " + std::to_string(team_.members[place]) + ": " + std::string(texts_[place].begin(), texts_[place].end());
    }
    return std::nullopt;
  }

 private:
  template <class BytesOf>
  void exchange(const BytesOf& bytes_of) {
    std::vector<ProcessGroup::Parcel> sent, received;
    const auto own = bytes_of(team_.own);
    team_.for_others([&](size_t place, size_t member) {
      const auto other = bytes_of(place);
      if (own.second > 0) sent.push_back({member, own.first, own.second});
      if (other.second > 0) received.push_back({member, other.first, other.second});
    });
    group_.exchange({wire::Collective::kBarrier}, sent, received);
  }

  ProcessGroup& group_;
  const Team& team_;
  std::vector<Report> reports_;
  std::vector<std::vector<uint8_t>> texts_;
};

}  // namespace

std::string open_together(const std::shared_ptr<DeviceLibrary>& library, ProcessGroup& group, const Team& team, const std::string& name) {
  Rendezvous rendezvous(group, team);
  std::optional<SharedStore> store;
  std::optional<Opening> opening;
  std::string why;
  try {
    library->begin(name, team.own, team.size());
    store.emplace(c10d::resolve_process_group(name)->getStore());
    opening.emplace(library, name);
  } catch (const std::exception& error) {
    why = error.what();
  }
  const auto until = Clock::now() + kOpenPatience;
  while (true) {
    const auto ended = opening ? opening->ended() : std::optional(why);
    if (!ended && Clock::now() >= until) why = kTooLong;
    if (ended && !ended->empty()) why = *ended;
    if (!why.empty()) rendezvous.tell(Standing::kFailed, {why.begin(), why.end()});
    else rendezvous.tell(ended ? Standing::kOpen : Standing::kOpening, store->take_new());
    if (const auto failed = rendezvous.failure()) return *failed;
    bool moved = !rendezvous.text(team.own).empty();
    team.for_others([&](size_t place, size_t) {
      if (rendezvous.text(place).empty()) return;
      store->put(rendezvous.text(place));
      moved = true;
    });
    if (rendezvous.all(Standing::kOpen)) return {};
    if (!moved) std::this_thread::sleep_for(kAgain);
  }
}

}  // namespace forebay::worker
