// What the devices of a session that has several do together, and what one of them does alone (docs/wire.md, GANG).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gang_plan.h"
#include "wire.h"

namespace forebay::wire {

// Why a call is carried out on one device alone.
enum class Alone : uint8_t {
  kNoBatch = 0,  // no batch of rows came yet
  kNoRoom = 1,   // a device has no room for a copy of what is held
  kNoRule = 2,   // no rule divides it, as a softmax over the rows
  kViews = 3,    // what it is given does not lie in whole rows
  kSizes = 4,    // only carrying it out tells how large its results are
  kKept = 5,     // one device alone keeps what it is given
};
constexpr uint8_t kAloneMax = 5;

struct Work {
  uint64_t calls = 0;
  uint64_t ns = 0;  // of the first device's worker
};

struct LoneWork {
  std::string op;  // with its overload
  Alone reason = Alone::kNoBatch;
  Work work;
};

struct GangWork {
  uint64_t devices = 1;
  Work divided;  // each device computed on its rows, or on its items of lists
  Work copies;   // each device computed the same
  std::vector<LoneWork> alone;
  std::optional<GangPlan> plan;  // where a step is divided by one
};

inline void put_work(Writer& out, const Work& work) {
  out.varint(work.calls);
  out.varint(work.ns);
}

inline Work get_work(Reader& in) {
  Work work;
  work.calls = in.varint();
  work.ns = in.varint();
  return work;
}

inline void put_gang_work(Writer& out, const GangWork& told) {
  out.varint(told.devices);
  put_work(out, told.divided);
  put_work(out, told.copies);
  out.varint(told.alone.size());
  for (const auto& lone : told.alone) {
    out.string(lone.op);
    out.u8(static_cast<uint8_t>(lone.reason));
    put_work(out, lone.work);
  }
  if (told.plan) put_gang_plan(out, *told.plan);
}

inline GangWork get_gang_work(Reader& in) {
  GangWork told;
  told.devices = in.varint();
  told.divided = get_work(in);
  told.copies = get_work(in);
  told.alone.resize(in.count(kLoneWorkMax, "the number of operators that ran alone"));
  for (auto& lone : told.alone) {
    lone.op = in.string();
    const uint8_t reason = in.u8();
    if (reason > kAloneMax) throw WireError("an unknown reason " + std::to_string(reason) + " to run alone");
    lone.reason = static_cast<Alone>(reason);
    lone.work = get_work(in);
  }
  if (!in.done()) told.plan = get_gang_plan(in);
  return told;
}

}  // namespace forebay::wire
