// A session on its way from one worker to another: what it is between two commands, and the bytes of its storages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <forebay/image.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "call/effects.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/packed_versions.h"
#include "session/checkpoints.h"
#include "session/gang_image.h"
#include "session/recomputed_calls.h"

namespace forebay::worker {

// Sends what a session is between two commands, but for the bytes of its storages. `unheard`: the last failure, if its client has not heard of it.
// `libraries`: those of its segments, packed. `versions`: those of its storages; null: there are none.
void send_head(const Snapshot& snapshot, const Cause& unheard, const std::string& libraries, PackedVersions* versions, const SendImage& send);
// And then those bytes, which `hand_over` gives in the snapshot's order, and those of versions behind them.
void send_bytes(const std::function<void(const Storages::TakeBytes&)>& hand_over, const SendImage& send);

// Bytes in frames of that kind; none where there are none.
void send_parts(wire::Reply reply, const uint8_t* data, size_t bytes, const SendImage& send);

// How its segments are carried out, which comes before all else.
wire::Writer segment_states(const std::vector<wire::ImageSegment>& segments);

class ImageReceiver {
 public:
  ImageReceiver(const Device& device, Storages& storages, const GangCaller& gang, GangImage& gang_image, Effects& effects, RecomputedCalls& recomputed,
                Checkpoints& checkpoints)
      : device_(device), storages_(storages), gang_(gang), gang_image_(gang_image), effects_(effects), recomputed_(recomputed), checkpoints_(checkpoints) {}

  // The image that comes is restored at once, so it may have storages that are let go.
  void expect_restore() { is_restored_ = true; }
  // The image that comes is kept off the device.
  void stay_parked() { stays_parked_ = true; }
  // The bytes of storages lie on this host already: `memory` gives each storage its own, in their order. To be called first.
  void map_by(std::function<c10::Storage(int64_t bytes)> memory) { memory_ = std::move(memory); }
  // Whether bytes of storages stay on this host.
  bool is_on_host() const { return device_.is_host() && !is_off_device(); }
  // What the storages that the image announces have, of those that have bytes; in their order.
  std::vector<int64_t> sizes() const;
  // What comes in answer to a FETCH, of a session that has done nothing yet. Throws wire::WireError, and CommandError if it does not fit here.
  void take(wire::Reader& frame);
  // Where the next bytes of the image go, and how many at most; none once it is whole. They are put in place by `received`.
  struct Room {
    uint8_t* data = nullptr;
    size_t bytes = 0;
  };
  Room room();
  void received(size_t bytes);
  // All has come that was kept for another worker: several devices hold it again. Throws as what takes it.
  void restore() {
    gang_image_.restore();
    recomputed_.resume();
  }
  // Why no image can be made of the session as it is now; empty: one can.
  std::string refusal();
  // Under a lease: as much as there is room for is made of what is to be computed again.
  void gather() { recomputed_.restore(); }
  // The session leaves with what it has.
  void leave() { recomputed_.leave(); }
  // Whether the session has done nothing yet.
  bool is_fresh() const { return storages_.size() == 0 && effects_.next_call() == 0; }
  bool is_whole() const { return arrival_ && arrival_->is_announced() && arrival_->next == arrival_->places.size(); }

  // Libraries of the session's segments, packed: those that came with it, or that are to leave with it.
  const std::string& libraries() const { return libraries_; }
  // How the worker of the image carried its segments out.
  const std::vector<wire::ImageSegment>& segments() const { return segments_; }
  void set_libraries(std::string libraries) { libraries_ = std::move(libraries); }

 private:
  // An image on its way in.
  struct Arrival {
    wire::ImageHead head;
    std::vector<Cause> causes;
    std::vector<wire::ImageStorage> storages;  // as they came; those with bytes get them in this order
    int64_t bytes = 0;       // of those with bytes
    size_t cause_bytes = 0;
    std::unordered_set<uint64_t> let_go;  // storages that are made again
    std::unique_ptr<ArrivingVersions> versions;  // null: none come
    std::vector<ArrivingVersions::Place> places;  // where bytes belong: of storages, and then of versions
    size_t next = 0;         // place to be filled
    int64_t filled = 0;      // of it
    c10::Storage staging{nullptr};
    int64_t staged = 0;
    // Whether all but the bytes has come.
    bool is_announced() const { return causes.size() == head.causes && storages.size() == head.storages; }
  };
  bool is_off_device() const { return stays_parked_ || gang_.is_on(); }
  void admit(const wire::ImageStorage& announced);
  // All but the bytes has come.
  void make_places();
  void get_products();
  void get_versions();
  // If all bytes have come, the session goes on where it was.
  void finish_if_whole();
  // Whether bytes of the next place go there by way of this host's memory.
  bool is_staged() const { return !device_.is_host() && !is_off_device(); }

  const Device& device_;
  Storages& storages_;
  const GangCaller& gang_;
  GangImage& gang_image_;
  Effects& effects_;
  RecomputedCalls& recomputed_;
  Checkpoints& checkpoints_;
  std::unique_ptr<Arrival> arrival_;
  std::string libraries_;
  std::vector<wire::ImageSegment> segments_;
  std::vector<uint8_t> versions_;  // as packed
  std::vector<uint8_t> products_;  // likewise
  std::function<c10::Storage(int64_t)> memory_;  // null: the bytes come
  bool stays_parked_ = false;
  bool is_restored_ = false;
};

}  // namespace forebay::worker
