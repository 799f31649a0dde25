// A session's bytes on disk while it is parked: one file without a name, so that it goes with the process, however that ends.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/socket.h"

namespace forebay::worker {

// What was spilled is not what is read back.
struct SpillDamaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class SpillFile {
 public:
  static constexpr int64_t kChunkBytes = int64_t{1} << 20;  // read, written and checked at a time, while a cache holds it

  // Where bytes lie, and what they were.
  struct Place {
    int64_t offset = 0;
    int64_t bytes = 0;
    uint64_t checksum = 0;
  };
  struct Source {
    const uint8_t* data;
    int64_t bytes;
  };
  struct Target {
    Place place;
    uint8_t* data;
  };

  // In the directory, for this process alone. Throws std::system_error where it cannot be made.
  explicit SpillFile(const std::string& directory);

  // Appends all of them, in large sequential writes. Throws std::system_error (no room left) with nothing appended.
  std::vector<Place> write(const std::vector<Source>& sources);
  // Reads them back; best in the order they were written. Throws SpillDamaged, std::system_error.
  void read(const std::vector<Target>& targets) const;

  int64_t bytes() const { return end_; }

 private:
  void write_at(int64_t offset, const std::vector<Source>& sources) const;
  void read_run(const Target* first, const Target* last) const;
  void read_large(const Target& target) const;

  Descriptor file_;
  int64_t end_ = 0;
};

}  // namespace forebay::worker
