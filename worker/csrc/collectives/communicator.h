// What devices of several workers make among themselves, by a back end of PyTorch's for process groups.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <forebay/wire.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "collectives/device_library.h"
#include "collectives/process_group.h"
#include "collectives/reduction.h"
#include "collectives/team.h"

namespace forebay::worker {

// All tensors lie on the device. Each member calls the same, as its group's members have agreed before: here nothing checks it. Returns when the
// device is done, so that memory may go. Throws GroupEnded where another member leaves meanwhile, or is not done within the group's patience, and what
// PyTorch throws; after that the communicator is of no use.
class Communicator {
 public:
  // Of a back end that all members of the team have opened.
  Communicator(DeviceLibrary& library, ProcessGroup& group, Team team, std::string name);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Whether sums and the like of such elements are right to the last special value: a maximum of the library's forgets NaN, for one.
  static bool reduces(at::ScalarType type, wire::Reduction reduction);

  void all_reduce_each(const std::vector<Reduced>& each);
  // As reduce_scatter of reduction.h.
  void reduce_scatter(wire::Reduction reduction, at::Tensor input, at::Tensor result);
  // `root`: a place in the team.
  void broadcast(at::Tensor data, size_t root);
  // Bytes to places in the team, and from them; messages between two members in order.
  struct Message {
    size_t place;
    at::Tensor data;
  };
  void exchange(const std::vector<Message>& sent, const std::vector<Message>& received);

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  void abort() noexcept;
  // Waits for what was begun; gives all up where it fails.
  template <class Begin>
  void carry_out(const Begin& begin);
  void finish(const Works& works);
  // Whether such work says by itself when it is done.
  bool tells_end(c10d::Work& work) const;
  // Throws GroupEnded if a member has left.
  void check_members();

  DeviceLibrary& library_;
  ProcessGroup& group_;
  const Team team_;
  const std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace forebay::worker
