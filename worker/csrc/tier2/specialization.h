// What a segment's library is compiled for, and serves: the words that its steps bind, with numbers of storages in place of their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/storage.h"

namespace forebay::worker {

// Why a segment stays as it is, in words for whoever profiles.
struct NotCompiled : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Words of calls: which call, and which of its words.
using WordPlaces = std::set<std::pair<uint64_t, uint64_t>>;

// What one coming of a segment binds.
struct Binding {
  std::vector<uint64_t> ids;    // of storages, by their numbers
  std::vector<double> numbers;  // those that change
  std::vector<std::pair<uint64_t, uint64_t>> draws;  // seed and counter of each
  std::vector<int64_t> offsets;  // of the windows, in elements
};

class Specialization {
 public:
  // A storage of the segment.
  struct Place {
    int64_t bytes = 0;
    bool has_dtype = false;
    c10::ScalarType dtype = c10::ScalarType::Float;
    LayoutRef layout;         // of all of it; none where no call uses it
    bool is_given = false;    // it is there before, and used
    bool is_input = false;    // it is given, and the library takes all of it
    bool is_windowed = false; // it is given, and the library takes windows of it
    bool is_made = false;
    bool is_written = false;  // by a call that did not make it
    bool is_freed = false;    // on the way
    // Whether the library gives what it holds at the end.
    bool is_output() const { return (is_made || is_written) && !is_freed && layout; }
  };

  // What a call draws, which is drawn as tier 1 draws it, and given to the library: a dropout's mask, or all that it fills its tensor with.
  struct Draw {
    size_t step;                 // of the path
    std::optional<double> kept;  // a dropout's: how likely an element of its mask is true
    LayoutRef layout;            // the mask's or the tensor's
    size_t word = 0;             // a tensor's: which of the step's words is its storage
    int64_t bytes = 0;           // of that
  };

  // A tensor over what is there before that lies elsewhere from time to time, as a batch of a data set. The library takes it by itself. One that is
  // written to is all that the segment looks at of its storage.
  struct Window {
    uint64_t place;
    LayoutRef layout;
    bool is_output = false;  // the library gives what it holds at the end
  };

  // Of the words that the steps came with last; nothing of it is carried out yet. A number that changes, or a tensor that lies elsewhere, in one of
  // `alike`, segments of the same calls in other sizes, is taken as such, whether or not it is: then one library may be for all. So are the numbers of
  // `changing`, which did in another session. Throws NotCompiled.
  Specialization(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, Storages& storages, Layouts& layouts,
          std::vector<const Specialization*> alike, const WordPlaces& changing = {});

  const std::vector<Place>& places() const { return places_; }
  uint64_t calls() const { return calls_; }
  int64_t made_bytes() const;
  size_t numbers() const { return numbers_; }
  const std::vector<Draw>& draws() const { return draws_; }
  const std::vector<Window>& windows() const { return windows_; }
  // Whether the library looks at indices that it computes, and tells behind all else that it gives how many of them lead nowhere.
  bool reports_out_of_bounds() const { return !guards_.empty(); }
  // For the compiling process (forebay_worker/descriptions.py reads it).
  std::vector<uint8_t> description(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans) const;

  // Why the steps' last words do not fit; none where they do.
  enum class GuardFailure { kNone, kNumber, kOther };
  GuardFailure bind(const std::vector<wire::Step*>& path, Binding& binding) const;
  // Looks at the indices that its calls are given. Throws as the calls would.
  void check(const Binding& binding, Storages& storages, const Device& device) const;

 private:
  enum class Kind : uint8_t { kUsed, kMade, kConstant, kNumber, kIgnored, kDrawn, kWindow };
  struct Word {
    Kind kind;
    bool may_change;  // kConstant: a number that may become one that changes, or an offset that may become a window's
    uint64_t value;   // the storage's number, the constant, or the place of the number, the draw or the window
  };
  // Where a call's tensor lies.
  struct Use {
    uint64_t place = 0;
    int64_t offset = 0;
    std::optional<size_t> window;
  };
  struct Check {
    const Plan* plan;
    Bound bound;
    Use use;
    LayoutRef layout;
  };
  // Between which numbers those of an argument must lie, which the segment computes. The library uses none that does not.
  struct Guard {
    uint64_t call;
    size_t argument;
    size_t item;  // of a list: its number and 1
    int64_t least;
    int64_t most;
    std::optional<int64_t> except;  // may be there, too
  };

  void note_call(size_t index, const wire::Step& step, const Plan& plan, Storages& storages);
  Use note_use(uint64_t id, const wire::Slot& offset, const LayoutRef& layout, bool writes, Storages& storages);
  size_t add_window(uint64_t number, const LayoutRef& layout);
  void note_result(uint64_t id, const OutputPlan& output);
  void note_checks(const Plan& plan, const std::vector<LayoutRef>& tensors, const std::vector<Use>& used);
  static void put(const Guard& guard, wire::Writer& out);
  void note_guard(const Plan& plan, const Bound& bound, size_t item);
  bool changes(const wire::Slot& slot) const;
  void note_number(const wire::Slot& slot);
  void note_mask(size_t index, const wire::Step& step, const Plan& plan, const std::vector<const OutputPlan*>& made);
  void note_values(size_t index, const wire::Step& step, const LayoutRef& layout, uint64_t place);
  uint64_t add_place(uint64_t id);
  void complete(Layouts& layouts);
  void settle_written(uint64_t number);

  std::vector<Place> places_;
  std::vector<Word> words_;                  // of all steps, in order
  std::vector<std::vector<uint64_t>> freed_; // before each step but the first: numbers
  std::vector<Check> checks_;
  std::vector<Guard> guards_;  // in the order of calls
  std::unordered_map<uint64_t, uint64_t> numbers_of_ids_;  // while it is made
  std::vector<const Specialization*> alike_;                       // while it is made
  WordPlaces changing_;                                     // while it is made
  size_t first_word_ = 0;                                   // of the call at hand; while it is made
  std::vector<Draw> draws_;
  std::vector<Window> windows_;
  std::vector<std::pair<size_t, uint64_t>> fixed_;  // words that are offsets, and the numbers of their storages; while it is made
  size_t numbers_ = 0;
  uint64_t calls_ = 0;
};

}  // namespace forebay::worker
