// The stand-in's memory: addresses that the host may not touch, and host memory that is pinned.
//
// A device's addresses are mapped without access for everybody. Jobs compute through a second mapping (the shadow). No address is given twice, so
// nobody meets a block through an address of an earlier one. Pinned memory is mapped twice as well: the host's mapping is closed for as long as a
// copy into it runs that the host has not waited for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace standin {

constexpr int kDevicesMax = 2;
constexpr int kStreamsPerDevice = 8;  // the default one, and a pool
constexpr int kStreams = kDevicesMax * kStreamsPerDevice;

// For each stream, the number of the last job that has certainly ended.
using Clock = std::array<uint64_t, kStreams>;
void merge(Clock& clock, const Clock& other);

enum class Place { kDevice, kPinned };

// What a job does with a range of addresses.
struct Range {
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool writes = false;
};

struct Access {
  Range range;
  int stream = 0;
  uint64_t job = 0;
  std::string name;
};

// One allocation. Jobs that use it hold it, so that its pages live as long as they run.
struct Block {
  Block(Place place, int device, uintptr_t begin, size_t bytes, size_t asked_bytes)
      : place(place), device(device), begin(begin), bytes(bytes), asked_bytes(asked_bytes) {}
  ~Block();  // gives the pages back
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Place place;
  int device;
  uintptr_t begin;
  size_t bytes;        // whole pages
  size_t asked_bytes;
  int home = -1;       // stream that it was allocated for
  std::set<int> recorded;  // streams that it was recorded on
  bool is_graphs = false;  // it was allocated while a graph was recorded: nobody else is given it, whatever stream uses it
  bool is_held = false;    // by that graph
  bool is_kept = false;    // by that graph alone: its tensor was freed
  std::vector<Access> accesses;  // those that a later one may have to wait for
};
using BlockRef = std::shared_ptr<Block>;

// All blocks. Callers hold the runtime's lock.
class Memory {
 public:
  Memory();

  BlockRef allocate(Place place, int device, size_t bytes);
  // The block that the address lies in; null where it lies in none.
  BlockRef find(const void* address) const;
  void forget(const Block& block) { blocks_.erase(block.begin); }

 private:
  std::map<uintptr_t, BlockRef> blocks_;
  std::array<uintptr_t, 2> next_{};
};

// Where jobs see what lies at an address of the device, or of pinned memory.
uint8_t* shadow_of(const void* address);
bool is_device_address(const void* address);
bool is_pinned_address(const void* address);

// Closes and opens the whole pages of a range of pinned memory for the host.
void close_to_host(const Block& block, const Range& range);
void open_to_host(const Block& block, const Range& range);

// Says on standard error what a fault of this process means, and leaves the rest to whoever handled it before.
void explain_faults();

// Adds the access; why it may not be made now, or nothing. `known` is what the accessing stream knows to have ended.
std::string note_access(Block& block, Access access, const Clock& known);
// Why the block may not be freed now, or nothing. `known` is what the host and the block's own stream know to have ended.
std::string misuse_by_free(const Block& block, const Clock& known);

std::string stream_name(int stream);

}  // namespace standin
