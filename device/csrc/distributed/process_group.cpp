#include "distributed/process_group.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#include <algorithm>
#include <array>

#include "base/devices.h"
#include "base/python.h"
#include "distributed/groups.h"
#include "distributed/store_meeting.h"
#include "runtime/storage.h"
#include "stream/stream.h"

namespace forebay {
namespace {

using c10d::ReduceOp;
using c10d::Work;
using wire::Collective;

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using c10d::PreMulSumSupplement;
#endif

// The workers of all members were replaced: they meet anew.
struct MeetingOver {};

// Is done when it is recorded: what comes later on its device comes after it.
class DoneWork final : public Work {
 public:
  // `synchronised`: a device that `wait` waits for, as the barrier of NCCL does.
  explicit DoneWork(std::vector<at::Tensor> results, std::optional<c10::DeviceIndex> synchronised = std::nullopt)
      : results_(std::move(results)), synchronised_(synchronised) {
    finish();
  }
  bool wait(std::chrono::milliseconds) override {
    if (synchronised_) CommandStream::of(*synchronised_).synchronize();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(at::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
  std::optional<c10::DeviceIndex> synchronised_;
};

c10::intrusive_ptr<Work> done_with(std::vector<at::Tensor> results) { return c10::make_intrusive<DoneWork>(std::move(results)); }

// Collectives have no derivatives of their own.
struct WithoutAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

wire::Reduction reduction_of(const ReduceOp& op) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return wire::Reduction::kSum;
    case ReduceOp::AVG:
      return wire::Reduction::kAverage;
    case ReduceOp::PRODUCT:
      return wire::Reduction::kProduct;
    case ReduceOp::MIN:
      return wire::Reduction::kMin;
    case ReduceOp::MAX:
      return wire::Reduction::kMax;
    case ReduceOp::PREMUL_SUM:
      return wire::Reduction::kSum;
    default: {
      constexpr std::array<const char*, 3> kBitwise{"BAND", "BOR", "BXOR"};
      const auto bitwise = static_cast<size_t>(op.op_) - static_cast<size_t>(ReduceOp::BAND);
      TORCH_CHECK_VALUE(false, "Cannot use ReduceOp.", bitwise < kBitwise.size() ? kBitwise[bitwise] : "UNUSED", " with NCCL; compute it of all_gather's results");
    }
  }
}

// What PREMUL_SUM sums: each rank's tensor times the rank's own factor.
at::Tensor multiplied(const at::Tensor& tensor, const ReduceOp& op) {
  TORCH_CHECK_VALUE(at::isFloatingType(tensor.scalar_type()), "PreMulSum Data type must be half, float, bfloat16 or double");
  const auto* factor = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "PREMUL_SUM has no factor; make it by torch.distributed._make_nccl_premul_sum(factor)");
  if (!factor->tensor_factor.defined()) return tensor.mul(factor->double_factor);
  return tensor.mul(factor->tensor_factor.to(tensor.scalar_type()).reshape({}));
}

// A complex sum is two real ones.
at::ScalarType reduced_type(const at::Tensor& tensor, wire::Reduction reduction) {
  const auto type = tensor.scalar_type();
  const bool sums = reduction == wire::Reduction::kSum || reduction == wire::Reduction::kAverage;
  TORCH_CHECK_VALUE(sums || !at::isComplexType(type), "complex tensors can be reduced by SUM and AVG");
  TORCH_CHECK_VALUE(reduction != wire::Reduction::kAverage || at::isFloatingType(type) || at::isComplexType(type), "ReduceOp.AVG wants floating types, not ",
                    c10::toString(type));
  TORCH_CHECK_VALUE(!c10::isFloat8Type(type), "float8 cannot be reduced; reduce bfloat16");
  return at::isComplexType(type) ? at::toRealValueType(type) : type;
}

int64_t message_bytes(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

void put_range(wire::Writer& out, const at::Tensor& tensor) {
  out.varint(handle_of(*tensor.unsafeGetTensorImpl()).id);
  out.varint(static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size());
  out.varint(static_cast<uint64_t>(message_bytes(tensor)));
}

// What was known to lie there does so no more.
void forget_contents(const at::Tensor& tensor) {
  auto& handle = handle_of(*tensor.unsafeGetTensorImpl());
  CommandStream::of(handle.device).contents().forget(handle);
}

// Messages go between two members, all else between all.
std::vector<Channel> channels_of(Collective what, const std::string& group, uint64_t rank, const std::vector<std::pair<int64_t, at::Tensor>>& sent,
                                 const std::vector<std::pair<int64_t, at::Tensor>>& received) {
  if (what != Collective::kMessage) return {Channel{group}};
  std::vector<Channel> channels;
  for (const auto& [member, tensor] : sent) channels.push_back({group, rank, static_cast<uint64_t>(member)});
  for (const auto& [member, tensor] : received) channels.push_back({group, static_cast<uint64_t>(member), rank});
  return channels;
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "nccl on virtual devices takes one tensor of each process, not ", tensors.size());
  return tensors.front();
}

// Parts of a contiguous tensor along its first dimension; equal ones where no sizes are given.
std::vector<at::Tensor> split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int members, const char* which) {
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.size(0) % members == 0, "Tensor's dim 0 does not divide equally across group size: ", which, " has ",
                      tensor.numel() == 0 ? 0 : tensor.size(0), " rows for ", members);
    const int64_t each = tensor.numel() == 0 ? 0 : tensor.size(0) / members;
    return split_rows(tensor, std::vector<int64_t>(static_cast<size_t>(members), each), members, which);
  }
  int64_t total = 0;
  for (const int64_t size : splits) total += size;
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == members, "Number of tensor splits not equal to group size");
  TORCH_CHECK_VALUE(total == (tensor.dim() == 0 ? 0 : tensor.size(0)) || tensor.numel() == 0, "Split sizes doesn't match total dim 0 size");
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (const int64_t size : splits) {
    parts.push_back(tensor.numel() == 0 ? tensor : tensor.narrow(0, start, size));
    start += size;
  }
  return parts;
}

}  // namespace

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size), store_(std::move(store)), options_(std::move(options)), met_(static_cast<size_t>(size)) {
  TORCH_CHECK_VALUE(size <= static_cast<int>(wire::kMembersMax), "a process group of virtual devices has ", wire::kMembersMax, " members at most, not ", size);
  Rounds::get().offer(this, store_, static_cast<uint64_t>(rank), static_cast<uint64_t>(size));
}

ProcessGroup::~ProcessGroup() { part(); }

void ProcessGroup::part() {
  has_ended_ = has_ended_ || group_;
  Rounds::get().withdraw(this);
  if (rounds_) rounds_->leave(name_);
  if (const auto group = std::exchange(group_, std::nullopt)) leave_group(CommandStream::of(*device_), *group);
}

std::vector<int64_t> ProcessGroup::everyone() const {
  std::vector<int64_t> members(static_cast<size_t>(size_));
  for (size_t member = 0; member < members.size(); ++member) members[member] = static_cast<int64_t>(member);
  return members;
}

void ProcessGroup::check(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.layout() == c10::kStrided, "Tensors must be CUDA and dense");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg(), "Tensors must be contiguous");
  const std::lock_guard lock(meeting_mutex_);
  if (!device_) device_ = tensor.device().index();
  TORCH_CHECK_VALUE(*device_ == tensor.device().index(), "this process group's tensors are on cuda:", static_cast<int>(*device_), ", and this one is on cuda:",
                    static_cast<int>(tensor.device().index()), "; a process is a member with one device");
}

// Meeting: each member says in the store where its worker's door is, and what is shown there.

void ProcessGroup::open() {
  auto& stream = CommandStream::of(*device_);
  if (group_) {
    TORCH_CHECK(group_->generation == stream.generation(), "this process group ended with the session that it was made in; make it anew: destroy_process_group(), init_process_group()");
    return;
  }
  TORCH_CHECK(!has_ended_, "this process group has ended");
  place_ = std::make_shared<StoreMeeting>(store_, static_cast<uint64_t>(rank_), options_->timeout);
  stream.lease().need();  // whose session it is
  rounds_ = Rounds::get().of(stream);
  if (rounds_) {
    name_ = RoundStore(*store_).name();
    rounds_->join(name_, static_cast<uint64_t>(rank_), static_cast<uint64_t>(size_));
  }
  group_ = open_group(stream, static_cast<uint64_t>(rank_), static_cast<uint64_t>(size_), options_->timeout, place_);
}

// The workers may be replaced between two of these steps.
void ProcessGroup::meet_one(uint64_t member) {
  auto& stream = CommandStream::of(*device_);
  if (rounds_) rounds_->meet(name_, member);
  for (bool told = false; !told;) {
    const uint64_t meeting = stream.commands().meetings().number();
    const auto pause = [&] {
      check_signals();
      if (stream.commands().meetings().number() != meeting) throw MeetingOver();
    };
    try {
      told = tell_member(stream, *group_, member, meeting, place_->told_by(meeting, member, pause));
    } catch (const MeetingOver&) {
    }
  }
}

void ProcessGroup::meet(const std::vector<int64_t>& members) {
  const std::lock_guard lock(meeting_mutex_);
  open();
  for (const int64_t member : members) {
    TORCH_CHECK_VALUE(member >= 0 && member < size_, "rank ", member, " of a process group of ", size_);
    if (member == rank_ || met_[static_cast<size_t>(member)]) continue;
    meet_one(static_cast<uint64_t>(member));
    met_[static_cast<size_t>(member)] = true;
  }
}

// Recording

void ProcessGroup::record(const std::vector<Channel>& channels, const std::function<void(wire::Writer&)>& append) {
  auto& stream = CommandStream::of(*device_);
  for (;;) {
    bool is_held = false;
    collect(stream, group_->generation, [&](wire::Writer& out) {
      is_held = rounds_ && !rounds_->record(channels);
      if (!is_held) append(out);
      return !is_held;
    });
    if (!is_held) return;
    rounds_->wait();
  }
}

void ProcessGroup::exchange(Collective what, const std::vector<Message>& sent, const std::vector<Message>& received) {
  std::vector<int64_t> members;
  for (const auto* messages : {&sent, &received}) {
    for (const auto& [member, tensor] : *messages) {
      check(tensor);
      members.push_back(member);
    }
  }
  if (members.empty()) return;
  meet(what == Collective::kMessage ? members : everyone());  // workers whose devices have a library in common are at it together
  for (const auto& [member, tensor] : received) forget_contents(tensor);
  ++recorded_;
  record(channels_of(what, name_, static_cast<uint64_t>(rank_), sent, received), [&](wire::Writer& out) {
    out.command(wire::Command::kExchange);
    out.varint(group_->number);
    out.u8(static_cast<uint8_t>(what));
    for (const auto* messages : {&sent, &received}) {
      out.varint(messages->size());
      for (const auto& [member, tensor] : *messages) {
        out.varint(static_cast<uint64_t>(member));
        put_range(out, tensor);
      }
    }
  });
}

void ProcessGroup::reduce_into(Collective what, const at::Tensor& result, const at::Tensor& input, const ReduceOp& op) {
  const auto reduction = reduction_of(op);
  const auto type = reduced_type(input, reduction);
  TORCH_CHECK_VALUE(result.scalar_type() == input.scalar_type(), "output tensor must have the same type as input tensor");
  check(input);
  check(result);
  if (op.op_ == ReduceOp::PREMUL_SUM) return reduce_into(what, result, multiplied(input, op), ReduceOp::SUM);
  meet(everyone());
  forget_contents(result);
  ++recorded_;
  record({Channel{name_}}, [&](wire::Writer& out) {
    out.command(wire::Command::kReduce);
    out.varint(group_->number);
    out.u8(static_cast<uint8_t>(what));
    out.u8(static_cast<uint8_t>(type));
    out.u8(static_cast<uint8_t>(reduction));
    put_range(out, input);
    put_range(out, result);
  });
}

// Collectives

c10::intrusive_ptr<Work> ProcessGroup::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const WithoutAutograd without;
  const at::Tensor& tensor = only(tensors);
  std::vector<Message> sent, received;
  if (rank_ == options.rootRank) {
    for (const int64_t member : everyone()) {
      if (member != rank_) sent.emplace_back(member, tensor);
    }
  } else {
    received.emplace_back(options.rootRank, tensor);
  }
  exchange(Collective::kBroadcast, sent, received);
  return done_with(tensors);
}

c10::intrusive_ptr<Work> ProcessGroup::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const WithoutAutograd without;
  reduce_into(Collective::kAllReduce, only(tensors), only(tensors), options.reduceOp);
  return done_with(tensors);
}

c10::intrusive_ptr<Work> ProcessGroup::allreduce_coalesced(std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const WithoutAutograd without;
  for (const auto& tensor : tensors) reduce_into(Collective::kAllReduce, tensor, tensor, options.reduceOp);
  return done_with(tensors);
}

// Made for all: those who do not ask for it keep what they have.
c10::intrusive_ptr<Work> ProcessGroup::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  const WithoutAutograd without;
  const at::Tensor& tensor = only(tensors);
  const at::Tensor result = rank_ == options.rootRank ? tensor : tensor.clone();
  reduce_into(Collective::kReduce, result, result, options.reduceOp);
  return done_with(tensors);
}

c10::intrusive_ptr<Work> ProcessGroup::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions&) {
  const WithoutAutograd without;
  TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs.front().size()) == size_, "all_gather wants as many output tensors as the group has members");
  std::vector<Message> sent, received;
  for (const int64_t member : everyone()) {
    sent.emplace_back(member, only(inputs));
    received.emplace_back(member, outputs.front()[static_cast<size_t>(member)]);
  }
  exchange(Collective::kAllGather, sent, received);
  return done_with(outputs.front());
}

c10::intrusive_ptr<Work> ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  const WithoutAutograd without;
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "output tensor must have the same type as input tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "output tensor size must be equal to world_size times input tensor size");
  TORCH_CHECK_VALUE(output.is_contiguous(), "Tensors must be contiguous");
  const at::Tensor flat = output.view({size_, input.numel()});
  std::vector<Message> sent, received;
  for (const int64_t member : everyone()) {
    sent.emplace_back(member, input);
    received.emplace_back(member, flat[member]);
  }
  exchange(Collective::kAllGather, sent, received);
  return done_with({output});
}

c10::intrusive_ptr<Work> ProcessGroup::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                                       const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are wanted");
  for (size_t index = 0; index < inputs.size(); ++index) _allgather_base(outputs[index], inputs[index], options);
  return done_with(outputs);
}

c10::intrusive_ptr<Work> ProcessGroup::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options) {
  const WithoutAutograd without;
  std::vector<Message> sent{{options.rootRank, only(inputs)}}, received;
  Tensors results;
  if (rank_ == options.rootRank) {
    TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs.front().size()) == size_, "gather wants as many output tensors as the group has members");
    results = outputs.front();
    for (const int64_t member : everyone()) received.emplace_back(member, results[static_cast<size_t>(member)]);
  }
  exchange(Collective::kGather, sent, received);
  return done_with(std::move(results));
}

c10::intrusive_ptr<Work> ProcessGroup::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs, const c10d::ScatterOptions& options) {
  const WithoutAutograd without;
  std::vector<Message> sent, received{{options.rootRank, only(outputs)}};
  if (rank_ == options.rootRank) {
    TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs.front().size()) == size_, "scatter wants as many input tensors as the group has members");
    for (const int64_t member : everyone()) sent.emplace_back(member, inputs.front()[static_cast<size_t>(member)]);
  }
  exchange(Collective::kScatter, sent, received);
  return done_with(outputs);
}

c10::intrusive_ptr<Work> ProcessGroup::reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                                      const c10d::ReduceScatterOptions& options) {
  const WithoutAutograd without;
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs.front().size()) == size_, "reduce_scatter wants as many input tensors as the group has members");
  const at::Tensor& output = only(outputs);
  Tensors flat;
  for (const auto& input : inputs.front()) {
    TORCH_CHECK_VALUE(input.numel() == output.numel(), "reduce_scatter wants input tensors of the output's size");
    flat.push_back(input.reshape({-1}));
  }
  at::Tensor input = at::cat(flat), result = output.is_contiguous() ? output : output.contiguous();
  reduce_into(Collective::kReduceScatter, result, input, options.reduceOp);
  if (!result.is_same(output)) output.copy_(result);
  return done_with(outputs);
}

c10::intrusive_ptr<Work> ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const WithoutAutograd without;
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "input tensor must be the same size as output size times world size");
  reduce_into(Collective::kReduceScatter, output, input, options.reduceOp);
  return done_with({output});
}

c10::intrusive_ptr<Work> ProcessGroup::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                                       const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are wanted");
  for (size_t index = 0; index < inputs.size(); ++index) _reduce_scatter_base(outputs[index], inputs[index], options);
  return done_with(outputs);
}

c10::intrusive_ptr<Work> ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                                     const c10d::AllToAllOptions&) {
  const WithoutAutograd without;
  TORCH_CHECK_VALUE(output.is_contiguous() && input.is_contiguous(), "Tensors must be contiguous");
  const auto from = split_rows(input, input_splits, size_, "the input"), to = split_rows(output, output_splits, size_, "the output");
  std::vector<Message> sent, received;
  for (const int64_t member : everyone()) {
    sent.emplace_back(member, from[static_cast<size_t>(member)]);
    received.emplace_back(member, to[static_cast<size_t>(member)]);
  }
  exchange(Collective::kAllToAll, sent, received);
  return done_with({output});
}

c10::intrusive_ptr<Work> ProcessGroup::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllToAllOptions&) {
  const WithoutAutograd without;
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_, "all_to_all wants as many tensors as the group has members");
  std::vector<Message> sent, received;
  for (const int64_t member : everyone()) {
    sent.emplace_back(member, inputs[static_cast<size_t>(member)]);
    received.emplace_back(member, outputs[static_cast<size_t>(member)]);
  }
  exchange(Collective::kAllToAll, sent, received);
  return done_with(outputs);
}

c10::intrusive_ptr<Work> ProcessGroup::message(const at::Tensor& tensor, int member, bool is_sent) {
  const WithoutAutograd without;
  std::vector<Message> messages{{member, tensor}};
  if (coalescing_) {
    check(tensor);
    (is_sent ? sent_ : received_).push_back(messages.front());
  } else {
    is_sent ? exchange(Collective::kMessage, messages, {}) : exchange(Collective::kMessage, {}, messages);
  }
  return done_with({tensor});
}

c10::intrusive_ptr<Work> ProcessGroup::send(std::vector<at::Tensor>& tensors, int member, int) { return message(only(tensors), member, true); }
c10::intrusive_ptr<Work> ProcessGroup::recv(std::vector<at::Tensor>& tensors, int member, int) { return message(only(tensors), member, false); }
c10::intrusive_ptr<Work> ProcessGroup::recvAnysource(std::vector<at::Tensor>&, int) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "NCCL does not receive from any source: give recv the rank that sends, as src");
}

void ProcessGroup::startCoalescing() { coalescing_ = true; }

c10::intrusive_ptr<Work> ProcessGroup::endCoalescing() {
  const WithoutAutograd without;
  coalescing_ = false;
  const auto sent = std::exchange(sent_, {}), received = std::exchange(received_, {});
  exchange(Collective::kMessage, sent, received);
  return done_with({});
}

c10::intrusive_ptr<Work> ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  const WithoutAutograd without;
  c10::DeviceIndex device = current_device();
  if (device_) device = *device_;
  else if (options.device) device = options.device->index();
  else if (!options.device_ids.empty()) device = static_cast<c10::DeviceIndex>(options.device_ids.front());
  const at::Tensor nothing = at::empty({size_, 1}, at::TensorOptions(at::kByte).device(c10::Device(c10::kCUDA, device)));
  std::vector<Message> sent, received;
  for (const int64_t member : everyone()) {
    if (member == rank_) continue;
    sent.emplace_back(member, nothing[rank_]);
    received.emplace_back(member, nothing[member]);
  }
  exchange(Collective::kBarrier, sent, received);
  return c10::make_intrusive<DoneWork>(Tensors{}, device);
}

}  // namespace forebay
