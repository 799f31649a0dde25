#include "distributed/progress.h"

#include <algorithm>
#include <utility>

namespace forebay {
namespace {

constexpr uint64_t kChannelsMax = 1 << 20;

std::string text_of(const wire::Writer& out) { return {out.bytes().begin(), out.bytes().end()}; }

wire::Reader reader_of(const std::string& packed) { return {reinterpret_cast<const uint8_t*>(packed.data()), packed.size()}; }

void put(wire::Writer& out, const Counts& counts) {
  out.varint(counts.size());
  for (const auto& [channel, count] : counts) {
    out.string(channel.group);
    out.varint(channel.from);
    out.varint(channel.to);
    out.varint(count);
  }
}

Counts get_counts(wire::Reader& in) {
  Counts counts;
  for (size_t left = in.count(kChannelsMax, "the number of channels"); left > 0; --left) {
    Channel channel{in.string(), 0, 0};
    channel.from = in.varint();
    channel.to = in.varint();
    counts[std::move(channel)] = in.varint();
  }
  return counts;
}

}  // namespace

bool Progress::takes_part(const Channel& channel) const {
  const auto found = groups.find(channel.group);
  if (found == groups.end()) return false;
  return channel.is_collective() || channel.from == found->second.rank || channel.to == found->second.rank;
}

uint64_t Progress::count(const Channel& channel) const {
  const auto found = recorded.find(channel);
  return found == recorded.end() ? 0 : found->second;
}

bool Progress::is_behind(const Counts& targets) const {
  return std::any_of(targets.begin(), targets.end(), [&](const auto& target) { return takes_part(target.first) && count(target.first) < target.second; });
}

std::string Progress::packed() const {
  wire::Writer out;
  out.varint(groups.size());
  for (const auto& [name, membership] : groups) {
    out.string(name);
    out.varint(membership.rank);
    out.varint(membership.size);
    out.varint(membership.met.size());
    for (const uint64_t member : membership.met) out.varint(member);
  }
  put(out, recorded);
  return text_of(out);
}

Progress Progress::of(const std::string& packed) {
  wire::Reader in = reader_of(packed);
  Progress progress;
  for (size_t left = in.count(kChannelsMax, "the number of groups"); left > 0; --left) {
    auto& membership = progress.groups[in.string()];
    membership.rank = in.varint();
    membership.size = in.varint();
    for (size_t members = in.count(wire::kMembersMax, "the number of members"); members > 0; --members) membership.met.insert(in.varint());
  }
  progress.recorded = get_counts(in);
  return progress;
}

std::string packed(const Counts& counts) {
  wire::Writer out;
  put(out, counts);
  return text_of(out);
}

Counts counts_of(const std::string& packed) {
  wire::Reader in = reader_of(packed);
  return get_counts(in);
}

bool CutSearch::has_all_of(const Channel& channel, const std::vector<Progress>& members) {
  uint64_t wanted = channel.from == channel.to ? 1 : 2, there = 0;
  for (const auto& progress : members) {
    const auto found = progress.groups.find(channel.group);
    if (found == progress.groups.end()) continue;
    if (channel.is_collective()) wanted = found->second.size;
    there += progress.takes_part(channel);
  }
  return there == wanted;
}

bool CutSearch::are_groups_whole(const std::vector<Progress>& members) {
  std::map<std::string, std::set<uint64_t>> there;
  for (const auto& progress : members) {
    for (const auto& [name, membership] : progress.groups) there[name].insert(membership.rank);
  }
  for (const auto& progress : members) {
    for (const auto& [name, membership] : progress.groups) {
      const auto& known = there[name];
      if (!std::includes(known.begin(), known.end(), membership.met.begin(), membership.met.end())) return false;
    }
  }
  return true;
}

CutSearch::Verdict CutSearch::conclude(const std::vector<Progress>& members) {
  for (const auto& progress : members) {
    for (const auto& [channel, count] : progress.recorded) targets_[channel] = std::max(targets_[channel], count);
  }
  if (!are_groups_whole(members)) return Verdict::kImpossible;
  for (const auto& [channel, count] : targets_) {
    if (count > 0 && !has_all_of(channel, members)) return Verdict::kImpossible;
  }
  const bool is_found = std::none_of(members.begin(), members.end(), [&](const Progress& one) { return one.is_behind(targets_); });
  if (is_found) return Verdict::kFound;
  return ++round_ < kRoundsMax ? Verdict::kGoOn : Verdict::kImpossible;
}

}  // namespace forebay
