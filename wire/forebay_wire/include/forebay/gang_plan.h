// How the devices of a session divide a program's step: what it was predicted to take, and what it took (docs/wire.md, GANG).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire.h"

namespace forebay::wire {

constexpr size_t kPlanItemsMax = 65536;  // of each list in a plan

// kWhole: each device has all of the batches and weights. kData: its rows of the batches, and copies of the weights. kTensor: all of the batches, and
// rows of weights. kRows: rows of both.
enum class Layout : uint8_t { kWhole = 0, kData = 1, kTensor = 2, kRows = 3 };
constexpr uint8_t kLayoutMax = 3;

struct GangPlan {
  // Storages that are held alike.
  struct Weights {
    std::string op;               // that uses them first
    std::vector<uint64_t> sizes;  // as it is given them
    uint64_t count = 0;
    uint64_t bytes = 0;           // of all
    uint64_t rows_of = 0;         // 0: copies; else 1 and the dimension
  };
  struct Considered {
    Layout layout = Layout::kWhole;
    uint64_t step_ns = 0;
    uint64_t bytes = 0;  // of one device, at most
  };
  // The step in stages, of which each device has one, or as many devices each.
  struct Pipeline {
    bool serves = false;           // steps are carried out so
    uint64_t parts = 0;            // of a batch
    uint64_t step_ns = 0;          // as Considered, as the next
    uint64_t bytes = 0;
    std::vector<uint64_t> stages;  // bytes of the weights of each
    uint64_t rows = 1;             // devices of each stage, which take the parts of a batch by turns
  };
  Layout layout = Layout::kWhole;
  uint64_t room_bytes = 0;  // of one device, that a plan may use
  std::vector<Weights> weights;
  std::vector<Considered> considered;
  uint64_t steps = 0;           // that were measured
  uint64_t step_ns = 0;         // their median
  std::vector<uint64_t> bytes;  // of each device, the most in a measured step
  std::optional<Pipeline> pipeline;
};

inline void put_numbers(Writer& out, const std::vector<uint64_t>& numbers) {
  out.varint(numbers.size());
  for (const uint64_t number : numbers) out.varint(number);
}

inline size_t get_count(Reader& in) { return in.count(kPlanItemsMax, "the length of a list in a plan"); }

inline std::vector<uint64_t> get_numbers(Reader& in) {
  std::vector<uint64_t> numbers(get_count(in));
  for (auto& number : numbers) number = in.varint();
  return numbers;
}

inline Layout get_layout(Reader& in) {
  const uint8_t layout = in.u8();
  if (layout > kLayoutMax) throw WireError("an unknown layout " + std::to_string(layout) + " of a step");
  return static_cast<Layout>(layout);
}

inline void put_gang_plan(Writer& out, const GangPlan& plan) {
  out.u8(static_cast<uint8_t>(plan.layout));
  out.varint(plan.room_bytes);
  out.varint(plan.weights.size());
  for (const auto& weights : plan.weights) {
    out.string(weights.op);
    put_numbers(out, weights.sizes);
    for (const uint64_t number : {weights.count, weights.bytes, weights.rows_of}) out.varint(number);
  }
  out.varint(plan.considered.size());
  for (const auto& one : plan.considered) {
    out.u8(static_cast<uint8_t>(one.layout));
    out.varint(one.step_ns);
    out.varint(one.bytes);
  }
  out.varint(plan.steps);
  out.varint(plan.step_ns);
  put_numbers(out, plan.bytes);
  if (!plan.pipeline) return;  // as of older workers
  out.u8(plan.pipeline->serves);
  for (const uint64_t number : {plan.pipeline->parts, plan.pipeline->step_ns, plan.pipeline->bytes}) out.varint(number);
  put_numbers(out, plan.pipeline->stages);
  out.varint(plan.pipeline->rows);
}

inline GangPlan get_gang_plan(Reader& in) {
  GangPlan plan;
  plan.layout = get_layout(in);
  plan.room_bytes = in.varint();
  plan.weights.resize(get_count(in));
  for (auto& weights : plan.weights) {
    weights.op = in.string();
    weights.sizes = get_numbers(in);
    weights.count = in.varint();
    weights.bytes = in.varint();
    weights.rows_of = in.varint();
  }
  plan.considered.resize(get_count(in));
  for (auto& one : plan.considered) {
    one.layout = get_layout(in);
    one.step_ns = in.varint();
    one.bytes = in.varint();
  }
  plan.steps = in.varint();
  plan.step_ns = in.varint();
  plan.bytes = get_numbers(in);
  if (in.done()) return plan;
  auto& pipeline = plan.pipeline.emplace();
  pipeline.serves = in.u8() != 0;
  pipeline.parts = in.varint();
  pipeline.step_ns = in.varint();
  pipeline.bytes = in.varint();
  pipeline.stages = get_numbers(in);
  if (!in.done()) pipeline.rows = in.varint();  // older workers have one device a stage
  return plan;
}

}  // namespace forebay::wire
