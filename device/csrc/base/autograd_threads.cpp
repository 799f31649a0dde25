#include "base/autograd_threads.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/devices.h"

namespace forebay {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::atomic<pid_t> backward_in{0};  // a child process has none of its parent's threads
std::atomic<bool> has_run{false};

using torch::autograd::Engine;
using torch::autograd::ReadyQueue;

struct StartedEngine : Engine {
  static void start() {
    void (Engine::*method)() = &StartedEngine::start_device_threads;
    (Engine::get_default_engine().*method)();
  }
  static const std::vector<std::shared_ptr<ReadyQueue>>& queues(Engine& of) { return of.*(&StartedEngine::device_ready_queues_); }
};

// The lock of a queue, which is private: the arguments of an explicit instantiation may name it (C++20, [temp.spec.general]/6).
std::mutex& mutex_of(ReadyQueue& queue);
template <std::mutex ReadyQueue::* member>
struct QueueMutex {
  friend std::mutex& mutex_of(ReadyQueue& queue) { return queue.*member; }
};
template struct QueueMutex<&ReadyQueue::mutex_>;

std::atomic<Engine*> engine{nullptr};  // that has started its threads; at one place for as long as the process runs
bool queues_held = false;

// Nothing that a device would hear of: a tensor without storage.
at::Tensor nothing_on(c10::DeviceIndex device) {
  return at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>(),
                                                  c10::Device(c10::kCUDA, device));
}

struct Nothing : torch::autograd::Function<Nothing> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& tensor) { return nothing_on(tensor.device().index()); }
  static variable_list backward(AutogradContext*, const variable_list&) { return {at::Tensor()}; }
};

// A thread takes one pass after the other, so this one, without Python objects, comes after all that it has to let go of.
void pass_through(c10::DeviceIndex device) {
  const at::AutoGradMode with_gradients(true);
  torch::autograd::backward({Nothing::apply(nothing_on(device).requires_grad_())}, {nothing_on(device)});
}

}  // namespace

void note_backward() {
  if (backward_in.load(std::memory_order_relaxed) != 0) return;
  engine = &Engine::get_default_engine();
  backward_in.store(::getpid(), std::memory_order_relaxed);
  has_run = true;
}

bool has_run_backward() { return has_run; }

void restart_backwards() {
  backward_in = 0;
  StartedEngine::start();
}

void hold_backward_queues() {
  queues_held = backward_in.load() == ::getpid();
  if (!queues_held) return;
  for (const auto& queue : StartedEngine::queues(*engine)) mutex_of(*queue).lock();
}

void let_go_of_backward_queues() {
  if (!std::exchange(queues_held, false)) return;
  for (const auto& queue : StartedEngine::queues(*engine)) mutex_of(*queue).unlock();
}

bool settle_backwards(std::chrono::milliseconds most) {
  if (backward_in.load() != ::getpid()) return true;
  auto done = std::make_shared<std::promise<void>>();
  auto passed = done->get_future();
  std::thread([done] {
    try {
      for (c10::DeviceIndex device = 0; device < device_count(); ++device) pass_through(device);
    } catch (const std::exception&) {  // an engine that takes no more passes has none to wait for
    }
    done->set_value();
  }).detach();
  return passed.wait_for(most) == std::future_status::ready;
}

}  // namespace forebay
