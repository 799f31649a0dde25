// Turns an operator's call into bytes of the command stream, without waiting for the worker.
//
// All of a call that does not change from step to step is its template, sent once. What makes two calls share one is the key:
// the operator, the geometry of its tensors and its arguments other than floats. The template also keeps the geometry of the
// results, so that a call seen before costs one look-up.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/operator_info.h"
#include "forebay/traces.h"
#include "forebay/wire.h"
#include "recorder/growths.h"
#include "recorder/inference.h"
#include "stream/stream.h"
#include "stream/worker_knowledge.h"

namespace forebay {

// A template as the client keeps it.
struct Entry {
  std::vector<uint64_t> key;
  uint64_t number;
  Prediction prediction;
  int64_t new_bytes;            // of all new storages
  uint64_t kind;
  bool known;                   // a worker has carried out a call of this kind
  std::unique_ptr<Entry> next;  // of the same hash
};

// A call's arguments in the forms that are needed of them; kept by each thread and used again.
struct Scan {
  std::vector<uint64_t> key;
  wire::Words words;  // what the call binds
  std::vector<wire::Word> kinds;
  at::Generator random;
  at::ScalarType default_dtype = at::kFloat;  // PyTorch's, at the call
  c10::DeviceIndex device = 0;  // whose storages these are
  uint64_t generation = 0;      // of its session

  void clear();
  void bind(wire::Word kind, uint64_t word) {
    words.push_back(word);
    kinds.push_back(kind);
  }
};

class Recorder final : public WorkerKnowledge {
 public:
  static Recorder& of(c10::DeviceIndex device);

  // Of the device that a call is for: that of its first tensor, else the one it names, else the current one.
  static Recorder& of(const OperatorInfo& info, const torch::jit::Stack& stack);

  // Records the call whose arguments are on the stack, and puts its results there.
  void record(OperatorInfo& info, torch::jit::Stack& stack);

  void forget() override;
  void distrust(const std::string& op) override;
  // No call of the operator (by its name, whatever the overload) comes as it did before.
  void forget_operator(const std::string& name);
  size_t templates() const { return count_; }
  // Kernels of the program that the worker has; under the lock of the commands.
  std::unordered_set<uint64_t>& kernels() { return kernels_; }
  // Whole programs that the worker has; as above.
  std::unordered_set<uint64_t>& programs() { return programs_; }

 private:
  explicit Recorder(c10::DeviceIndex device);
  bool record_in_parts(OperatorInfo& info, torch::jit::Stack& stack);
  bool record_widened(OperatorInfo& info, torch::jit::Stack& stack);  // widening.cpp
  struct Sent {
    uint64_t sequence;
    uint64_t kind;
    bool known;
  };
  void finish_call(const Sent& sent, bool overlapping);
  void record_slowly(OperatorInfo& info, torch::jit::Stack& stack, Scan scan, bool overlapping);
  Sent append_call(OperatorInfo& info, torch::jit::Stack& stack, Scan& scan, Entry& entry, std::unique_lock<std::mutex> lock);
  void ask(OperatorInfo& info, torch::jit::Stack& stack, Scan& scan, const Prediction& prediction);
  void bind_random(const OperatorInfo& info, Scan& scan);
  Entry* find(uint64_t hash, const std::vector<uint64_t>& key);
  Entry& find_or_insert(OperatorInfo& info, const torch::jit::Stack& stack, const Scan& scan, const Prediction& prediction);
  void drop_templates();
  void put_operator(const OperatorInfo& info);
  // Whether the call may come out otherwise by what the program has set.
  bool heeds_settings(const OperatorInfo& info) const;
  void tell_settings();

  const c10::DeviceIndex device_;
  CommandStream& stream_;
  CommandBuffer& commands_;
  // All guarded by the lock of the commands.
  std::unordered_map<uint64_t, std::unique_ptr<Entry>> entries_;
  size_t count_ = 0;
  size_t template_bytes_ = 0;
  std::unordered_map<const OperatorInfo*, uint64_t> operators_;  // to the wire's number
  std::unordered_set<uint64_t> kernels_;
  std::unordered_set<uint64_t> programs_;
  uint64_t told_settings_ = wire::kSettingsDefault;
  Growths growths_;  // has a lock of its own
};

}  // namespace forebay
