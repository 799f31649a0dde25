#include "collectives/communicator.h"

#include <chrono>
#include <map>
#include <thread>

#include <ATen/ops/add.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/clock.h"

namespace forebay::worker {

namespace {

using wire::Reduction;

constexpr auto kLookAgain = std::chrono::microseconds(20);
constexpr int kLooksPerCheck = 50;  // at the other members
constexpr auto kWordOfEnd = std::chrono::seconds(1);  // of a member, once its device's part has failed

c10d::ReduceOp op_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:  // divided by us: not every back end has it
      return c10d::ReduceOp::SUM;
    case Reduction::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case Reduction::kMin:
      return c10d::ReduceOp::MIN;
    case Reduction::kMax:
      return c10d::ReduceOp::MAX;
  }
  throw wire::WireError("an unknown reduction");
}

void divide(Reduction reduction, at::Tensor data, size_t members) {
  if (reduction == Reduction::kAverage) data.div_(static_cast<int64_t>(members));
}

}  // namespace

Communicator::Communicator(DeviceLibrary& library, ProcessGroup& group, Team team, std::string name)
    : library_(library), group_(group), team_(std::move(team)), name_(std::move(name)) {
  const auto opened = c10d::resolve_process_group(name_);
  backend_ = opened->getBackend(opened->getDeviceTypes().front().type());
}

Communicator::~Communicator() { abort(); }

bool Communicator::reduces(at::ScalarType type, Reduction reduction) {
  switch (type) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
      return reduction == Reduction::kSum || reduction == Reduction::kAverage;
    case at::kLong:
    case at::kInt:
      return reduction != Reduction::kAverage;
    default:
      return false;
  }
}

void Communicator::all_reduce_each(const std::vector<Reduced>& each) {
  std::map<std::pair<at::ScalarType, Reduction>, std::vector<at::Tensor>> kinds;
  for (const auto& [reduction, data] : each) {
    if (data.numel() > 0) kinds[{data.scalar_type(), reduction}].push_back(data);
  }
  for (auto& [kind, data] : kinds) {
    carry_out([&]() -> Works {
      c10d::AllreduceCoalescedOptions options;
      options.reduceOp = op_of(kind.second);
      return {data.size() == 1 ? backend_->allreduce(data, options) : backend_->allreduce_coalesced(data, options)};
    });
    for (const at::Tensor& one : data) divide(kind.second, one, team_.size());
  }
}

void Communicator::reduce_scatter(Reduction reduction, at::Tensor input, at::Tensor result) {
  carry_out([&]() -> Works {
    c10d::ReduceScatterOptions options;
    options.reduceOp = op_of(reduction);
    return {backend_->_reduce_scatter_base(result, input, options)};
  });
  divide(reduction, result, team_.size());
}

void Communicator::broadcast(at::Tensor data, size_t root) {
  carry_out([&]() -> Works {
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int64_t>(root);
    std::vector<at::Tensor> tensors{std::move(data)};
    return {backend_->broadcast(tensors, options)};
  });
}

void Communicator::exchange(const std::vector<Message>& sent, const std::vector<Message>& received) {
  const bool together = backend_->supportsCoalescing();
  const auto begin = [&]() -> Works {
    Works works;
    std::vector<int> tags(team_.size());  // the same on both sides: a number for each message to a member, or from it
    if (together) backend_->startCoalescing();
    for (const auto& [place, data] : sent) {
      std::vector<at::Tensor> tensors{data};
      works.push_back(backend_->send(tensors, static_cast<int>(place), tags[place]++));
    }
    std::fill(tags.begin(), tags.end(), 0);
    for (const auto& [place, data] : received) {
      std::vector<at::Tensor> tensors{data};
      works.push_back(backend_->recv(tensors, static_cast<int>(place), tags[place]++));
    }
    if (!together) return works;
    return {backend_->endCoalescing()};
  };
  if (!sent.empty() || !received.empty()) carry_out(begin);
}

template <class Begin>
void Communicator::carry_out(const Begin& begin) {
  if (!backend_) throw GroupEnded("the communicator of this process group has ended");
  try {
    finish(begin());
  } catch (const std::exception&) {
    abort();
    // Another member that is gone is what others hear of, not what the library makes of it.
    for (const auto until = Clock::now() + kWordOfEnd; Clock::now() < until; std::this_thread::sleep_for(kLookAgain * kLooksPerCheck)) check_members();
    throw;
  }
}

bool Communicator::tells_end(c10d::Work& work) const {
  if (backend_->getBackendName() != "gloo") return true;
  const auto type = work.retrieveOpType();
  return type == c10d::OpType::ALLREDUCE || type == c10d::OpType::ALLREDUCE_COALESCED || type == c10d::OpType::BROADCAST;
}

void Communicator::finish(const Works& works) {
  const auto until = Clock::now() + group_.patience();
  for (const auto& work : works) {
    for (int looks = 1; tells_end(*work) && !work->isCompleted(); ++looks) {
      if (looks % kLooksPerCheck == 0) {
        check_members();
        if (Clock::now() >= until) throw GroupEnded("the devices of this process group were not done within its time");
      }
      std::this_thread::sleep_for(kLookAgain);
    }
    if (!work->wait()) throw GroupEnded("the communicator of this process group has ended");
  }
}

void Communicator::check_members() {
  team_.for_others([this](size_t, size_t member) {
    if (!group_.has_left(member)) return;
    abort();
    group_.leave_after(member);
  });
}

void Communicator::abort() noexcept {
  if (!backend_) return;
  try {
    backend_->abort();
  } catch (const std::exception&) {  // it is left all the same
  }
  backend_.reset();
  library_.end(name_);
}

}  // namespace forebay::worker
