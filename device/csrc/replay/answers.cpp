#include "replay/answers.h"

#include <algorithm>
#include <functional>

namespace forebay {
namespace {

uint64_t hash_of_data(wire::Reader body) {
  body.varint();  // how long the worker was busy
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(body.position()), body.left()});
}

}  // namespace

void Answers::begin(bool keeps) {
  hashes_.clear();
  keeps_ = keeps;
  differences_ = compared_ = 0;
}

void Answers::note(uint64_t request, wire::Reader body) {
  if (keeps_) hashes_.emplace_back(request, hash_of_data(body));
}

void Answers::forget(uint64_t request) {
  hashes_.erase(hashes_.begin(), std::upper_bound(hashes_.begin(), hashes_.end(), std::pair(request, ~uint64_t{0})));
}

const uint64_t* Answers::hash_of(uint64_t request) const {
  const auto found = std::lower_bound(hashes_.begin(), hashes_.end(), std::pair(request, uint64_t{0}));
  return found == hashes_.end() || found->first != request ? nullptr : &found->second;
}

void Answers::compare(uint64_t request, wire::Reader body) {
  const uint64_t* hash = hash_of(request);
  if (hash == nullptr) return;
  ++compared_;
  differences_ += *hash != hash_of_data(body);
}

}  // namespace forebay
