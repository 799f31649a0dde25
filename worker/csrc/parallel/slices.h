// Slices of data that lies on the devices, such as data[0:64], that come to a call as batches do which are uploaded: each time others, when nothing is
// left of what the call made of the ones before. Each is copied to a storage of its own for the time of the call, and is an upload there (batches.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/batches.h"

namespace forebay::worker {

class Slices {
 public:
  Slices(Gang& gang, const Device& device, Storages& storages, Batches& batches) : gang_(gang), device_(device), storages_(storages), batches_(batches) {}

  // The words of a call that is given storages with slices; they are freed with it.
  class Taken {
   public:
    Taken(Storages& storages, wire::Words words) : words(std::move(words)), storages_(storages) {}
    ~Taken() {
      for (const uint64_t id : ids) storages_.withdraw(id);
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

    wire::Words words;
    std::vector<uint64_t> ids;

   private:
    Storages& storages_;
  };
  // Null where the call is carried out as it is.
  std::unique_ptr<Taken> take(uint64_t number, const Plan& plan, const wire::Words& words);

  // Whether a call is given only a part of such data, as a slice may be. And which of the tensors that it reads has its rows, by their order.
  static bool is_part(const Entry& data, const Layout& view);
  static size_t number_of_rows(const Plan& plan);

  // What was seen, with an image of the session. Throws wire::WireError.
  void put(wire::Writer& out) const;
  void get(wire::Reader& in);

 private:
  static constexpr size_t kSeenMax = 4096;  // uses
  static constexpr int64_t kBytesMin = int64_t{16} << 10;  // of a slice: what is made of fewer is not worth dividing
  static constexpr int64_t kRoomShare = 4;  // slices that the device must have room for

  using Use = std::array<uint64_t, 2>;  // of a storage, by a template
  // The last time.
  struct Seen {
    uint64_t offset = 0;  // elements
    uint64_t made = 0;    // the call's first result
    bool moves = false;
  };
  // Bytes of a storage.
  struct Range {
    int64_t begin = 0;
    int64_t bytes = 0;
    bool operator==(const Range& other) const { return begin == other.begin && bytes == other.bytes; }
  };

  void note_written(const Plan& plan, const wire::Words& words);
  // Whether such a slice came before from elsewhere, and nothing was left of what the call made of it.
  bool moves(const Use& use, uint64_t offset, uint64_t made);
  // Whether it is only a part of what lies here, of data that does not come anew itself.
  bool is_slice(const Entry& data, const Layout& view) const;
  void copy(uint64_t source, const Range& range, const std::vector<size_t>& places, Taken& taken);
  uint64_t new_id();

  Gang& gang_;
  const Device& device_;
  Storages& storages_;
  Batches& batches_;
  std::map<Use, Seen> seen_;
  std::map<uint64_t, Range> current_;  // of each storage of which some come, the last that came
  uint64_t last_id_ = std::numeric_limits<uint64_t>::max() - (uint64_t{1} << 20);  // below Shares' drafts
};

}  // namespace forebay::worker
