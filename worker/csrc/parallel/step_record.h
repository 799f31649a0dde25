// The calls from one batch of a kind to the next: what a program does again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/storage.h"
#include "sharding/way.h"

namespace forebay::worker {

class StepRecord {
 public:
  // Of uploads: the call that uses them first, which argument they are there, and their bytes.
  using Kind = std::vector<uint64_t>;
  using Call = TemplateCall;
  static constexpr size_t kStays = std::numeric_limits<size_t>::max();  // of what is not freed in the step
  // A storage as the step finds it, or as it is made in it.
  struct Found {
    int64_t bytes = 0;
    bool is_untouched = false;
    bool was_there = false;  // before the step
    size_t last = kStays;    // the number of the last call before it is freed
  };
  struct Upload {
    uint64_t id;
    Kind kind;
    int64_t period;  // of its rows; 0 where it cannot be divided
  };

  bool is_on() const { return is_on_; }
  const Kind& kind() const { return kind_; }
  // From the next call on, until the kind comes again.
  void begin(Kind kind);
  void note_upload(Upload upload);
  void note(uint64_t number, const Plan& plan, const wire::Words& words, Storages& storages);
  void forget() { *this = StepRecord(); }

  const std::vector<Call>& calls() const { return calls_; }
  const std::unordered_map<uint64_t, Found>& storages() const { return storages_; }
  const std::vector<Upload>& uploads() const { return uploads_; }

 private:
  void note_freed(const Storages& storages);
  static constexpr size_t kWordsMax = size_t{4} << 20;  // of a step; longer ones are not recorded

  bool is_on_ = false;
  Kind kind_;
  std::vector<Call> calls_;
  std::unordered_map<uint64_t, Found> storages_;
  std::vector<uint64_t> alive_;  // of them
  std::vector<Upload> uploads_;
  size_t words_ = 0;
};

// With an image of the session. Throws wire::WireError.
void put_kind(wire::Writer& out, const StepRecord::Kind& kind);
StepRecord::Kind get_kind(wire::Reader& in);

}  // namespace forebay::worker
