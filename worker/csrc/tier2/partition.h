// A segment on an accelerator: parts that are recorded as one graph each, and parts that are carried out call by call
// (docs/reference/compiled.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/Storage.h>
#include <forebay/traces.h>

#include "call/plan.h"
#include "device/device_graph.h"

namespace forebay::worker {

// Steps that are recorded as one graph, and where it has its storages.
class Recording {
 public:
  // A storage that the steps use.
  struct Place {
    int64_t bytes = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;  // Byte where it is looked at in several
    bool is_input = false;    // it is there before, and used
    bool is_made = false;
    bool is_written = false;  // an input that a call writes to
    bool is_freed = false;    // on the way
    bool moves = false;       // an input that is another storage each time: its bytes are copied to `memory`
    uint64_t id = 0;          // the last time
    const void* address = nullptr;  // of an input that does not move
    c10::Storage memory{nullptr};   // the graph's own: of an input that moves, and of what is made and stays

    // Whether there is something of it after the steps that they made or wrote to.
    bool has_bytes_of_result() const { return bytes > 0 && !is_freed && (is_made ? static_cast<bool>(memory) : is_written); }
  };

  // Numbers that are to be looked at before the graph is handed over.
  struct Check {
    const Plan* plan;
    const NumberRange* range;
    size_t place;
    LayoutRef layout;
    int64_t offset;
  };

  // What one coming of the steps binds.
  struct Binding {
    std::vector<uint64_t> ids;  // of storages, by their places
    DeviceGraph::Draws draws;   // seed and counter
  };

  // Of the words that the steps came with last.
  Recording(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, size_t begin, size_t end);

  size_t begin() const { return begin_; }
  size_t end() const { return end_; }
  uint64_t calls() const { return calls_; }
  const std::vector<Check>& checks() const { return checks_; }
  // False where the steps' last words are others than those that were recorded.
  bool bind(const std::vector<wire::Step*>& path, Binding& binding) const;

  std::vector<Place> places;
  std::shared_ptr<DeviceGraph> graph;  // none before it is recorded

 private:
  enum class Kind : uint8_t { kStorage, kSame, kDraw, kCounter };
  struct Word {
    Kind kind;
    uint64_t value;  // kStorage: the place; kSame: the word
  };

  void note_call(const wire::Step& step, const Plan& plan);
  size_t note_use(const wire::Slot& slot, const Layout& layout, bool writes);
  size_t place_of(uint64_t id);

  size_t begin_;
  size_t end_;
  uint64_t calls_ = 0;
  std::vector<Word> words_;                // of all steps, in order
  std::vector<std::vector<size_t>> freed_; // before each step: places; none before the first, since that is before the part
  std::vector<Check> checks_;
  std::unordered_map<uint64_t, size_t> places_of_ids_;
};

struct Part {
  size_t begin;
  size_t end;
  std::optional<Recording> recording{};  // none: call by call
};

// All steps of the path, in parts. `excluded`: steps that cannot be recorded, as was found by trying. `why`: of the first call that cannot be, in words.
std::vector<Part> parts_of(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, const std::set<size_t>& excluded, std::string& why);

}  // namespace forebay::worker
