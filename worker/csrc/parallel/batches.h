// Which uploads are batches of rows: those of a kind that came again and again. What is taken from data that lies on the devices by indices, or put together
// of parts of it, comes like an upload.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "call/plan.h"
#include "device/storage.h"
#include "parallel/step_plan.h"

namespace forebay::worker {

class Batches {
 public:
  Batches(int64_t devices, Storages& storages, StepPlan& step) : devices_(devices), storages_(storages), step_(step) {}

  // By which they are divided.
  StepPlan& plan() { return step_; }
  // Bytes came from the client, or were taken from data by indices.
  void note_upload(uint64_t id);
  // A call was carried out, which may have taken such.
  void note_call(const Plan& plan, const wire::Words& words);
  // Whether this call, the first to use some of the uploads, is to be divided by them.
  bool find(uint64_t number, const Plan& plan, const wire::Words& words);
  // Whether a call is given one that was found, and was not taken.
  bool has_any(const Plan& plan, const wire::Words& words) const;
  // Whether it was found, and was not taken.
  bool has(uint64_t id) const { return periods_.count(id) != 0; }
  // The period of its rows; 0 of what is no such batch.
  int64_t take(uint64_t id);

  // Whether bytes came for it that no call has used yet; and a call other than those that are told here did.
  bool is_unused(uint64_t id) const { return uploads_.count(id) != 0; }
  void note_used(uint64_t id) { uploads_.erase(id); }
  // Whether a call takes a batch from data by indices, or puts one together of slices.
  static bool makes_batch(const Plan& plan, const wire::Words& words);
  // The period of the rows by which so many take part in a batch that a call is given so; 0 where it cannot be divided.
  static int64_t period_of_rows(const Layout& view, int64_t offset, int64_t bytes, int64_t devices);

  // What was found, with an image of the session, whose storages are there when it is taken. Throws wire::WireError.
  void put(wire::Writer& out) const;
  void get(wire::Reader& in);

 private:
  static constexpr size_t kUnusedMax = 4096;  // uploads that no call has used; more are forgotten
  static constexpr int64_t kCame = 2;  // uploads of a kind, until the next one is taken for a batch

  const int64_t devices_;
  Storages& storages_;
  StepPlan& step_;
  std::unordered_set<uint64_t> uploads_;                            // that no call has used yet
  std::map<StepRecord::Kind, std::shared_ptr<int64_t>> came_;       // how often uploads of a kind were freed or written anew
  std::unordered_map<uint64_t, int64_t> periods_;                   // of those that were found
};

}  // namespace forebay::worker
