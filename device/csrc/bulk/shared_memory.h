// The memory that a worker on this host shares with us, for bulk data: a header, a ring of slots for uploads, and slots for downloads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "forebay/spin.h"
#include "forebay/wire.h"

namespace forebay {

class SharedMemory {
 public:
  static constexpr size_t kSlotBytes = size_t{256} << 10;
  static constexpr uint32_t kUploadSlots = 32;
  static constexpr size_t kWindowSlots = 8;  // of downloads that are waited for
  static constexpr size_t kLaterSlots = 256;  // of downloads that are not
  static constexpr size_t kBytes = wire::kSharedHeaderBytes + (kUploadSlots + kWindowSlots + kLaterSlots) * kSlotBytes;

  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { unmap(); }

  // Takes the descriptor over, and maps it where an earlier one is, if there is one: slots stay where they are. Throws c10::Error where what the worker gave could be taken away again.
  void map(int descriptor, uint64_t bytes);
  void unmap();
  explicit operator bool() const { return data_ != nullptr; }

  // Whether bulk data were given to it since the last answer that was waited for: the next answer is near.
  bool is_in_use() const { return in_use_.load(std::memory_order_relaxed); }
  void set_in_use(bool in_use) { in_use_.store(in_use, std::memory_order_relaxed); }

  // Uploads. `offer` gives the slot for the next one, null while all hold what the worker has not read.
  // Throws c10::Error where the worker counts what was not offered.
  uint8_t* offer();
  // Waits until the worker has read one more. False where that did not happen for so long, or a signal came.
  bool wait(int milliseconds);

  uint8_t* window_slot(size_t index) const { return slot(kUploadSlots + index % kWindowSlots); }
  uint8_t* later_slot(size_t index) const { return slot(kUploadSlots + kWindowSlots + index); }
  uint64_t offset_of(const uint8_t* place) const { return static_cast<uint64_t>(place - data_); }

 private:
  uint8_t* slot(size_t index) const { return data_ + wire::kSharedHeaderBytes + index * kSlotBytes; }
  uint32_t taken() const;

  uint8_t* data_ = nullptr;
  std::atomic<bool> in_use_{false};
  uint32_t offered_ = 0;
  Spinner spinner_;
  std::array<uint32_t, kUploadSlots> free_after_{};  // the worker's count from which on each slot is free
};

// Has the system fill new memory of a large target by large pages. A hint.
void advise_large_pages(void* target, int64_t bytes);

}  // namespace forebay
