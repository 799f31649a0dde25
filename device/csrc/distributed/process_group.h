// What "nccl" means for virtual devices: collectives that the workers of the processes carry out among themselves. Each is recorded in order with
// what comes before and after, as on a CUDA stream, and nothing waits for it.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/groups.h"
#include "distributed/image_rounds.h"
#include "forebay/wire.h"

namespace forebay {

class ProcessGroup final : public c10d::Backend {
 public:
  static constexpr const char* kName = "nccl";

  struct Options final : c10d::Backend::Options {
    Options() : c10d::Backend::Options(kName, std::chrono::minutes(10)) {}
  };

  ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return kName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  // Collectives so far; members that called others hear of it.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return recorded_; }
  // Messages between the two go together, so that none waits for another.
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void abort() override { part(); }
  void shutdown() override { part(); }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs, const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                                 const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int member, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int member, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  using Message = std::pair<int64_t, at::Tensor>;  // to or from a member
  using Tensors = std::vector<at::Tensor>;

  void check(const at::Tensor& tensor);
  // Tells the worker of the members that it will need.
  void meet(const std::vector<int64_t>& members);
  void open();
  void meet_one(uint64_t member);
  void part();
  // Records what is done on these channels, once rounds of images let it be.
  void record(const std::vector<Channel>& channels, const std::function<void(wire::Writer&)>& append);
  void exchange(wire::Collective what, const std::vector<Message>& sent, const std::vector<Message>& received);
  void reduce_into(wire::Collective what, const at::Tensor& result, const at::Tensor& input, const c10d::ReduceOp& op);
  c10::intrusive_ptr<c10d::Work> message(const at::Tensor& tensor, int member, bool is_sent);
  std::vector<int64_t> everyone() const;

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  std::mutex meeting_mutex_;
  std::optional<c10::DeviceIndex> device_;  // of the first tensor
  std::shared_ptr<MeetingPlace> place_;     // set with group_
  std::optional<OpenGroup> group_;          // once its worker has a door for it
  std::shared_ptr<ImageRounds> rounds_;     // likewise; null where there are none
  std::string name_;                        // likewise: the same to all members
  bool has_ended_ = false;
  std::vector<bool> met_;
  std::atomic<uint64_t> recorded_{0};
  bool coalescing_ = false;
  std::vector<Message> sent_, received_;    // while coalescing
};

}  // namespace forebay
