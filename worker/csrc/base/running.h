// Which operator the serving thread is in, for other threads to see.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace forebay::worker {

class Running {
 public:
  // A call, for as long as it lives; nothing within another one. `name` outlives the process's last call, as those of schemas do.
  class Call {
   public:
    Call(Running& running, const std::string& name) : running_(running), is_outer_(running.steps_.load(std::memory_order_relaxed) % 2 == 0) {
      if (!is_outer_) return;
      running_.name_.store(&name, std::memory_order_relaxed);
      running_.step();
    }
    ~Call() {
      if (is_outer_) running_.step();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Running& running_;
    bool is_outer_;
  };

  // The number of the call that runs now, and its operator.
  std::optional<std::pair<uint64_t, std::string>> now() const {
    const uint64_t steps = steps_.load(std::memory_order_acquire);
    if (steps % 2 == 0) return std::nullopt;
    return std::pair(steps, *name_.load(std::memory_order_relaxed));
  }

 private:
  void step() { steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  std::atomic<uint64_t> steps_{0};  // odd while a call runs; written by the serving thread alone
  std::atomic<const std::string*> name_{nullptr};
};

}  // namespace forebay::worker
