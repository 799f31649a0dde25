// The tree of steps as bytes: with them another worker expects what its predecessor did (docs/wire.md, TRACES).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "traces.h"

namespace forebay::wire {

constexpr size_t kTracesBytesMax = size_t{64} << 20;  // more than a full tree takes

struct TracesAsBytes {
  // The paths from the root to each step, in the order in which steps are written, to be taken one by one: `take(number, path)`.
  template <typename Take>
  static void walk(Traces& traces, const Take& take) {
    struct Left {
      Step* step;
      size_t depth;
    };
    std::vector<Left> left;
    std::vector<Step*> path;
    const auto add = [&](const Step& step, size_t depth) {
      for (auto next = step.next.rbegin(); next != step.next.rend(); ++next) left.push_back({*next, depth});
    };
    add(traces.root_, 0);
    for (uint64_t number = 0; !left.empty(); ++number) {
      const auto [step, depth] = left.back();
      left.pop_back();
      path.resize(depth);
      path.push_back(step);
      take(number, path);
      add(*step, depth + 1);
    }
  }

  // Between two segments. Steps are written before those that follow them.
  static void put(Writer& out, const Traces& traces) {
    out.varint(traces.next_storage_);
    out.varint(traces.next_counter_);
    std::vector<const Step*> left{&traces.root_};
    while (!left.empty()) {
      const Step& step = *left.back();
      left.pop_back();
      if (&step != &traces.root_) put_step(out, step);
      out.varint(step.next.size());
      out.varint(step.likely == nullptr ? 0 : number_of(step.next, step.likely));
      left.insert(left.end(), step.next.rbegin(), step.next.rend());
    }
  }

  // Into a tree of which nothing came yet. `kinds_of(key)` gives those of a step's words, or null where there is no such call. Throws WireError.
  template <typename KindsOf>
  static void get(Reader& in, Traces& traces, const KindsOf& kinds_of) {
    if (!traces.root_.next.empty()) throw WireError("a tree of steps behind other steps");
    traces.next_storage_ = in.varint();
    traces.next_counter_ = in.varint();
    std::vector<Step*> left{&traces.root_};
    while (!left.empty()) {
      Step& step = *left.back();
      left.pop_back();
      if (&step != &traces.root_) get_step(in, step, traces, kinds_of);
      const size_t count = in.count(kStepChildrenMax, "the number of steps that follow one");
      const uint64_t likely = in.bounded(count, "the number of the likely step");
      if (count > kStepsMax - traces.steps_.size()) throw WireError("a tree of more steps than are kept");
      for (size_t index = 0; index < count; ++index) step.next.push_back(&traces.steps_.emplace_back());
      if (likely > 0) step.likely = step.next[likely - 1];
      left.insert(left.end(), step.next.rbegin(), step.next.rend());
    }
    traces.here_ = &traces.root_;
    traces.base_ = traces.next_storage_;
  }

 private:
  // From 1.
  static uint64_t number_of(const std::vector<Step*>& steps, const Step* step) {
    return static_cast<uint64_t>(std::find(steps.begin(), steps.end(), step) - steps.begin()) + 1;
  }

  static void put_step(Writer& out, const Step& step) {
    for (const uint64_t number : {step.key, step.base, step.came, step.ended}) out.varint(number);
    for (const Slot& slot : step.slots) put_slot(out, slot);
    out.varint(step.freed.size());
    for (const Slot& slot : step.freed) put_slot(out, slot);
  }

  template <typename KindsOf>
  static void get_step(Reader& in, Step& step, Traces& traces, const KindsOf& kinds_of) {
    for (uint64_t* number : {&step.key, &step.base, &step.came, &step.ended}) *number = in.varint();
    const std::vector<Word>* kinds = kinds_of(step.key);
    if (kinds == nullptr) throw WireError("a step of a template that is not defined");
    for (const Word kind : *kinds) step.slots.push_back(get_slot(in, kind));
    for (size_t left = in.count(kFreedKeptMax, "the number of storages freed before a step"); left > 0; --left) {
      step.freed.push_back(get_slot(in, Word::kStorage));
    }
    traces.words_ += step.slots.size() + step.freed.size();
    if (traces.words_ > kStepWordsMax) throw WireError("a tree of more words than are kept");
  }

  static void put_slot(Writer& out, const Slot& slot) {
    out.u8(static_cast<uint8_t>((slot.moves ? kMoves : 0) | (slot.varies ? kVaries : 0)));
    out.varint(slot.last);
  }

  static Slot get_slot(Reader& in, Word kind) {
    const uint8_t flags = in.u8();
    if (flags > (kMoves | kVaries)) throw WireError("a step's word of unknown flags");
    return {in.varint(), kind, (flags & kMoves) != 0, (flags & kVaries) != 0};
  }

  static constexpr uint8_t kMoves = 1;
  static constexpr uint8_t kVaries = 2;
};

}  // namespace forebay::wire
