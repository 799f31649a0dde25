// Whether a call can be divided among devices: it is carried out whole and in parts, and the results are held against each other.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "call.h"
#include "composed_call.h"
#include "composition.h"
#include "data_parallel.h"
#include "gang.h"
#include "shares.h"

namespace forebay::worker {

// Of one call, whose storages are copies, or in rows, or whole on this device. All runs on this device, on copies of what it may write to.
class Trial {
 public:
  Trial(Gang& gang, const Device& device, Storages& storages, Layouts& layouts, Caller& caller, Shares& shares, uint64_t number, Plan& plan,
        const wire::Words& words);

  // A way that gives what the whole call gives, within rounding; none where there is none. Throws as Caller::run where the whole call fails.
  std::optional<Way> way();
  // Of a call that has none.
  wire::Alone why_none() const { return had_parts_ ? wire::Alone::kResults : wire::Alone::kViews; }

 private:
  // What is tried: to have untouched storages, and copies that are written to, in rows; to take parts of copies whose sizes are those of rows, and to divide numbers that are sizes.
  struct Attempt {
    bool fresh_rows;
    bool parts_of_copies;
    bool sizes;
  };
  struct Run {
    std::vector<at::Tensor> made;
    Memory memory;  // after it
  };
  // A tensor argument in rows, by its sizes.
  struct Rows {
    std::vector<int64_t> sizes;
    size_t dimension;
    int64_t rows;  // in a period
  };

  Memory whole_memory();
  // As compositions say; none where nothing else than what they say may divide the call. `composed`: whether they say anything of it.
  std::optional<Way> composed_way(const Run& whole, const Memory& memory, bool& composed);
  bool composes_as(const Composition& composition, const Run& whole, const Memory& memory);
  // The bytes of a new storage of the whole's.
  c10::Storage stored(const at::Tensor& made, const wire::Output& output) const;
  // Has the way that fits values which tell nothing be tried with others; then it is sure where it fits those too.
  void try_other_values(const Memory& memory);
  Memory other_values(const Memory& memory, bool in_runs) const;
  void note_tensors(const wire::Argument& argument, size_t& tensor);
  bool runs_as(const Run& whole, const Memory& memory);
  Memory part_of(const Memory& memory, int place);
  Memory copied(const Memory& memory) const;
  // 0 where the storage is not in rows.
  int64_t period_of(uint64_t id);
  bool localise(Attempt attempt);
  bool localise(wire::Argument& argument, size_t& tensor);
  void take_part(wire::Argument& argument, size_t& tensor);
  void divide_sizes();
  // Has storages be in rows that are untouched, or are copies that the call writes to, where a dimension is as long as that of rows.
  void place_targets(const wire::Argument& argument, size_t& tensor);
  Run run(Plan& plan, const wire::Words& words, const Memory& memory);
  // Whether this device has little room for what the whole and all parts make; then it is held off the device.
  bool is_short() const;
  at::Tensor off_device(const at::Tensor& made) const;
  bool leaves_as(const Run& whole, const std::vector<Run>& parts);
  bool makes_as(size_t index, const Run& whole, const std::vector<Run>& parts, wire::Output& output);
  bool makes_rows(const at::Tensor& whole, const std::vector<at::Tensor>& parts, size_t dimension, int64_t rows, wire::Output& output);
  // Whether the parts' sum or mean is the whole: what both are, as zeros, is taken for what other results of the call are.
  bool is_sum(const at::Tensor& whole, const std::vector<at::Tensor>& parts, uint8_t dtype, int64_t bytes);
  void decide_sums();
  at::Tensor flat(const c10::Storage& storage, uint8_t dtype) const;
  int64_t devices() const { return static_cast<int64_t>(gang_.size()); }

  Gang& gang_;
  const Device& device_;
  Storages& storages_;
  Layouts& layouts_;
  Caller& caller_;
  Shares& shares_;
  Plan& plan_;
  const wire::Template& source_;
  c10::OperatorHandle op_;
  const wire::Words& words_;
  std::vector<size_t> tensors_;  // where the words of each tensor argument begin
  std::vector<uint8_t> dtypes_;  // of each
  std::vector<bool> writes_;     // whether the call writes to it
  std::vector<Rows> rows_;
  std::map<uint64_t, int64_t> fresh_;  // periods of what is to be in rows
  wire::Template local_;
  wire::Template tried_;  // the parts', before their results were known
  Way way_;
  bool had_parts_ = false;  // what it is given could be parted
  std::vector<size_t> open_;  // new storages that are a sum or a mean
};

// Whether two results are the same within rounding; whether they hold anything but zeros.
// `length`: of what they are made of, where that may be longer than they are.
bool is_close(const at::Tensor& one, const at::Tensor& other, double length = 0);
bool is_telling(const at::Tensor& tensor);
// As is_telling, and whether truths are not all the same.
bool is_varied(const at::Tensor& tensor);

}  // namespace forebay::worker
