// The device a worker computes on: the host ("cpu"), an accelerator of PyTorch's ("cuda", "hip", or the name under which a vendor's
// out-of-tree back end is registered as PrivateUse1), or none ("null").
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>

#include "device/device_graph.h"

namespace forebay::worker {

// Of dense tensors on such a device.
c10::DispatchKey dispatch_key(c10::DeviceType type);

class Device {
 public:
  // Has an accelerator's allocator give out so many bytes at most, temporaries included.
  using LimitMemory = std::function<void(int64_t bytes)>;

  // Throws std::invalid_argument for an unknown kind, c10::Error where PyTorch sees no such device.
  // `make_graph`: none where the device has no graphs.
  Device(std::string kind, int index, std::string model, LimitMemory limit_memory, MakeGraph make_graph);

  const std::string& kind() const { return kind_; }
  const std::string& model() const { return model_; }
  c10::Device where() const { return where_; }
  bool computes() const { return kind_ != "null"; }
  bool is_host() const { return where_.is_cpu(); }

  // To be called by the thread that computes, before anything else.
  void enter(std::optional<int> threads) const;

  // What this process may hold on the device. A host's memory is limited by memory.h.
  void limit_memory(int64_t bytes) const;

  // Storages that nothing can resize. `zeroed`: nobody's old bytes show.
  c10::Storage allocate(int64_t bytes, bool zeroed) const;
  // A storage in host memory that the device copies from and to fast.
  c10::Storage allocate_staging(int64_t bytes) const;
  // A storage in host memory for what is off the device; it does not count as the session's.
  c10::Storage allocate_parked(int64_t bytes) const;
  // `target` and `source` may lie on the host or the device; the copy is ordered with the device's work.
  void copy(const c10::Storage& target, int64_t target_offset, const c10::Storage& source, int64_t source_offset, int64_t bytes) const;

  void synchronize() const;
  // Happens when the device has done what it was handed so far. BACKEND_DEFAULT: its time can be asked for.
  c10::Event record(c10::EventFlag flag = c10::EventFlag::PYTORCH_DEFAULT) const;
  // Whether the device computes after an error that it reported; some, as a bad address in a kernel, end all that a process can do with it.
  bool recovers() const noexcept;
  // Whether work handed to the device before the last `touched` is still running.
  bool busy();
  void touched() { event_.reset(); }
  // Gives memory that no tensor holds back to the device, and memory that copies went through back to the host.
  void release_cache() const;

  // The generator of random operators, in the state that (seed, counter) alone determines.
  at::Generator seeded_generator(uint64_t seed, uint64_t counter) const;

  bool has_graphs() const { return static_cast<bool>(make_graph_); }
  std::unique_ptr<DeviceGraph> make_graph() const { return make_graph_(); }
  // The same numbers as those of such generators, for pairs of seed and counter.
  DeviceGraph::Draws draws_of(DeviceGraph::Draws draws) const;
  // The graph that the calling thread's work is recorded by, until null: random operators draw from it.
  void record_into(DeviceGraph* graph) const { recording_ = graph; }
  bool is_recording() const { return recording_ != nullptr; }

 private:
  std::string kind_;
  std::string model_;
  c10::Device where_;
  LimitMemory limit_memory_;
  MakeGraph make_graph_;
  mutable DeviceGraph* recording_ = nullptr;
  std::optional<c10::Event> event_;
};

}  // namespace forebay::worker
