#include "collectives/reduction.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

namespace forebay::worker {

namespace {

using wire::Reduction;

constexpr int64_t kWholeBytes = 16 << 10;  // so little is sent whole to all, which reduce it themselves: one way, not there and back
constexpr int64_t kPartBytes = 1 << 20;   // of a part that is on its way: it stays in the caches

uint8_t* data_of(const at::Tensor& data) { return static_cast<uint8_t*>(data.mutable_data_ptr()); }
size_t data_bytes(const at::Tensor& data) { return static_cast<size_t>(data.numel()) * data.element_size(); }

void reduce_two(Reduction reduction, at::Tensor& result, const at::Tensor& one, const at::Tensor& other) {
  const bool truths = result.scalar_type() == at::kBool;
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
      truths ? at::logical_or_out(result, one, other) : at::add_out(result, one, other);
      return;
    case Reduction::kProduct:
      truths ? at::logical_and_out(result, one, other) : at::mul_out(result, one, other);
      return;
    case Reduction::kMin:
      at::minimum_out(result, one, other);
      return;
    case Reduction::kMax:
      at::maximum_out(result, one, other);
      return;
  }
  throw wire::WireError("an unknown reduction");
}

// Room for what comes from the others, used again for each piece.
class PeerParts {
 public:
  PeerParts(const ProcessGroup& group, const at::Tensor& like, int64_t elements) : rank_(group.rank()) {
    for (size_t member = 0; member < group.size(); ++member) rooms_.push_back(member == rank_ ? at::Tensor() : at::empty({elements}, like.options()));
  }

  at::Tensor of(size_t member, int64_t elements) const { return rooms_[member].narrow(0, 0, elements); }

  // Of the others' parts, as they came, and `own`; `result` may be `own`.
  void reduce(Reduction reduction, const at::Tensor& own, at::Tensor result) const {
    const auto part = [&](size_t member) { return member == rank_ ? own : of(member, own.numel()); };
    if (rooms_.size() == 1) {
      if (!result.is_same(own)) result.copy_(own);
      return;
    }
    at::Tensor so_far = part(0), scratch = part(rank_ == 0 ? 1 : 0);  // its values are read where they are written over
    for (size_t member = 1; member < rooms_.size(); ++member) {
      at::Tensor target = member + 1 == rooms_.size() ? result : scratch;
      reduce_two(reduction, target, so_far, part(member));
      so_far = target;
    }
    if (reduction == Reduction::kAverage) result.div_(static_cast<int64_t>(rooms_.size()));
  }

 private:
  size_t rank_;
  std::vector<at::Tensor> rooms_;
};

void reduce_whole(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& data) {
  const PeerParts parts(group, data, data.numel());
  std::vector<ProcessGroup::Parcel> sent, received;
  for (size_t member = 0; member < group.size(); ++member) {
    if (member == group.rank()) continue;
    sent.push_back({member, data_of(data), data_bytes(data)});
    received.push_back({member, data_of(parts.of(member, data.numel())), data_bytes(data)});
  }
  group.exchange(subject, sent, received);
  parts.reduce(subject.reduction, data, data);
}

}  // namespace

void all_reduce(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& data) {
  if (static_cast<int64_t>(data_bytes(data)) <= kWholeBytes) return reduce_whole(group, subject, data);
  const auto members = static_cast<int64_t>(group.size());
  const int64_t piece = kPartBytes / static_cast<int64_t>(data.element_size());
  const PeerParts parts(group, data, std::min(piece, (data.numel() + members - 1) / members));
  for (int64_t done = 0; done < data.numel(); done += piece * members) {
    const at::Tensor window = data.narrow(0, done, std::min(piece * members, data.numel() - done));
    const int64_t each = (window.numel() + members - 1) / members;
    const auto part = [&](size_t member) {
      const int64_t start = std::min(static_cast<int64_t>(member) * each, window.numel());
      return window.narrow(0, start, std::min(each, window.numel() - start));
    };
    const at::Tensor own = part(group.rank());
    std::vector<ProcessGroup::Parcel> scattered, collected, told, heard;
    for (size_t member = 0; member < group.size(); ++member) {
      if (member == group.rank()) continue;
      const at::Tensor theirs = part(member);
      scattered.push_back({member, data_of(theirs), data_bytes(theirs)});
      collected.push_back({member, data_of(parts.of(member, own.numel())), data_bytes(own)});
      told.push_back({member, data_of(own), data_bytes(own)});
      heard.push_back({member, data_of(theirs), data_bytes(theirs)});
    }
    group.exchange(subject, scattered, collected);
    parts.reduce(subject.reduction, own, own);
    group.exchange(subject, told, heard);
  }
}

void reduce_scatter(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& input, const at::Tensor& result) {
  const int64_t piece = std::min(std::max<int64_t>(kPartBytes / static_cast<int64_t>(input.element_size()), 1), std::max<int64_t>(result.numel(), 1));
  const PeerParts parts(group, input, piece);
  int64_t done = 0;
  do {
    const int64_t count = std::min(piece, result.numel() - done);
    const auto part = [&](size_t member) { return input.narrow(0, static_cast<int64_t>(member) * result.numel() + done, count); };
    std::vector<ProcessGroup::Parcel> sent, received;
    for (size_t member = 0; member < group.size(); ++member) {
      if (member == group.rank()) continue;
      sent.push_back({member, data_of(part(member)), data_bytes(part(member))});
      const at::Tensor room = parts.of(member, count);
      received.push_back({member, data_of(room), data_bytes(room)});
    }
    group.exchange(subject, sent, received);
    parts.reduce(subject.reduction, part(group.rank()), result.narrow(0, done, count));
    done += count;
  } while (done < result.numel());
}

}  // namespace forebay::worker
