#include "distributed/round_store.h"

#include <array>
#include <cstdio>
#include <random>

namespace forebay {
namespace {

const std::string kFolder = "forebay/images/";
const std::string kState = kFolder + "state";
const std::string kAnnounced = kFolder + "round";

std::string joined(uint64_t first, uint64_t second) { return std::to_string(first) + " " + std::to_string(second); }

std::pair<uint64_t, uint64_t> parted(const std::string& text) {
  size_t end = 0;
  const uint64_t first = std::stoull(text, &end);
  return {first, std::stoull(text.substr(end))};
}

std::string key_of(uint64_t round, const std::string& what, uint64_t rank) {
  return kFolder + std::to_string(round) + "/" + what + "/" + std::to_string(rank);
}

std::string wish_key(uint64_t after) { return kFolder + "wish/" + std::to_string(after); }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string RoundStore::name() {
  std::random_device source;
  std::array<char, 33> fresh{};
  for (size_t place = 0; place < 32; place += 8) std::snprintf(fresh.data() + place, 9, "%08x", source());
  return store_->compareSet("forebay/name", "", fresh.data());
}

std::optional<std::string> RoundStore::get(const std::string& key) const {
  if (!store_->check({key})) return std::nullopt;
  const auto value = store_->get(key);
  return std::string(value.begin(), value.end());
}

void RoundStore::wish(uint64_t after) { store_->set(wish_key(after), bytes_of("1")); }

bool RoundStore::is_wished(uint64_t after) const { return store_->check({wish_key(after)}); }

void RoundStore::announce(uint64_t round, uint64_t meeting) { store_->set(kAnnounced, bytes_of(joined(round, meeting))); }

std::optional<std::pair<uint64_t, uint64_t>> RoundStore::announced() const {
  const auto value = get(kAnnounced);
  return value ? std::optional(parted(*value)) : std::nullopt;
}

void RoundStore::report(uint64_t round, const std::string& what, uint64_t rank, const std::string& value) { store_->set(key_of(round, what, rank), bytes_of(value)); }

std::optional<std::string> RoundStore::reported(uint64_t round, const std::string& what, uint64_t rank) const { return get(key_of(round, what, rank)); }

std::optional<std::vector<std::string>> RoundStore::reported_by_all(uint64_t round, const std::string& what, uint64_t size) const {
  std::vector<std::string> keys;
  for (uint64_t rank = 0; rank < size; ++rank) keys.push_back(key_of(round, what, rank));
  if (!store_->check(keys)) return std::nullopt;
  std::vector<std::string> values;
  for (uint64_t rank = 0; rank < size; ++rank) values.push_back(*reported(round, what, rank));
  return values;
}

void RoundStore::forget(uint64_t round, const std::string& what, uint64_t size) {
  for (uint64_t rank = 0; rank < size; ++rank) store_->deleteKey(key_of(round, what, rank));
}

RoundStore::State RoundStore::state(uint64_t meeting) {
  const auto [of, round] = parted(store_->compareSet(kState, "", joined(meeting, 0)));
  return {of, round};
}

bool RoundStore::replace(const State& state, const State& by) {
  const std::string wanted = joined(by.meeting, by.round);
  return store_->compareSet(kState, joined(state.meeting, state.round), wanted) == wanted;
}

bool RoundStore::count(uint64_t round, uint64_t meeting) {
  const State now = state(meeting);
  return now.meeting == meeting && replace(now, {meeting, round});
}

uint64_t RoundStore::begin(uint64_t meeting) {
  for (;;) {
    const State now = state(meeting);
    if (now.meeting >= meeting || replace(now, {meeting, now.round})) return now.round;
  }
}

}  // namespace forebay
