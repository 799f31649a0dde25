// Work for an accelerator that is recorded once, and handed over again as one: a CUDA graph. Made by forebay_worker/device_graphs.py.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace forebay::worker {

class DeviceGraph {
 public:
  // Of each random call: a seed, and the place in its numbers from which it draws.
  using Draws = std::vector<std::pair<uint64_t, uint64_t>>;

  virtual ~DeviceGraph() = default;
  // Until `end`, what this thread hands the device is recorded and not carried out, and memory comes from the graph's own. Throws where it cannot be.
  virtual void begin(const Draws& draws) = 0;
  // The next call is the next random one.
  virtual void draw() = 0;
  // Throws where something could not be recorded. After `begin` it is to be called in any case.
  virtual void end() = 0;
  // Hands the device what was recorded. Throws as an operator does.
  virtual void replay(const Draws& draws) = 0;
  // How much the device's allocator has grown by it.
  virtual int64_t bytes() const = 0;
};

using MakeGraph = std::function<std::unique_ptr<DeviceGraph>()>;

}  // namespace forebay::worker
