#include "gang/gang_work.h"

#include <string>

#include "base/clock.h"

namespace forebay::worker {

namespace {

std::string name_of(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

}  // namespace

GangWork::Wait::Wait(GangWork& work) : work_(work), since_ns_(now_ns()) {}

GangWork::Wait::~Wait() {
  const uint64_t took_ns = now_ns() - since_ns_;
  work_.waited_ns_ += took_ns;
  if (work_.last_ == nullptr) return;
  work_.last_->ns += took_ns;
  work_.worked_ns_ += took_ns;
}

uint64_t GangWork::clock() const { return now_ns() - waited_ns_; }

wire::Work& GangWork::alone(const c10::OperatorHandle& op, wire::Alone reason) { return alone_[{&op.schema(), reason}]; }

uint64_t GangWork::book(wire::Work& work, uint64_t since_ns) {
  const uint64_t now = clock();
  ++work.calls;
  work.ns += now - since_ns;
  worked_ns_ += now - since_ns;
  last_ = &work;
  return now;
}

wire::GangWork GangWork::told(uint64_t devices) const {
  wire::GangWork told{devices, divided_, copies_, {}, std::nullopt};
  for (const auto& [key, work] : alone_) told.alone.push_back({name_of(*key.first), key.second, work});
  return told;
}

}  // namespace forebay::worker
