// Bulk data: through memory shared with a worker on this host, through the socket with another, or not at all, if the worker holds the same
// bytes.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

#include "base/storage_handle.h"
#include "stream/stream.h"

namespace forebay {

class Transfers {
 public:
  explicit Transfers(CommandStream& stream) : stream_(stream) {}

  // Returns when `data` may be changed. With a `source`, which keeps the data alive, that is not before the next synchronisation.
  void write(StorageHandle& storage, int64_t offset, const void* data, int64_t bytes, c10::Storage source = c10::Storage(nullptr));
  void read(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes);
  // As read, but the bytes are there only after the next synchronisation. `target` keeps their place alive.
  void read_later(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes, c10::Storage target);

 private:
  using Question = CommandStream::Question;

  void write_small(const StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes);
  bool copy_known(StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes, uint64_t fingerprint);
  void send_upload(uint64_t generation, Upload upload);
  void finish_downloads_to(const uint8_t* data, int64_t bytes);
  uint64_t append_read(const StorageHandle& storage, int64_t offset, int64_t bytes, const uint8_t* slot, Question* question = nullptr);
  void read_through_memory(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes);
  void read_through_socket(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes);
  void receive_data(uint64_t request, uint8_t* target, size_t bytes);
  bool read_into_slots(const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes, const c10::Storage& kept);

  CommandStream& stream_;
};

}  // namespace forebay
