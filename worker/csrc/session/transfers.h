// Bytes of storages on their way between a session and its client, and between two storages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <c10/core/Storage.h>
#include <forebay/wire.h>

#include "base/replies.h"
#include "base/shared_memory.h"
#include "call/effects.h"
#include "device/device.h"
#include "device/storage.h"
#include "parallel/gang_caller.h"

namespace forebay::worker {

// A WRITE whose payload is still on its way.
struct Upload {
  uint64_t storage;
  int64_t offset;
  int64_t bytes;
  c10::Storage memory;  // where the payload goes: the storage's own, or what is copied to it when the upload is finished
  int64_t at;
  uint8_t* target() const { return static_cast<uint8_t*>(memory.mutable_data()) + at; }
};

class Transfers {
 public:
  Transfers(const Device& device, Storages& storages, GangCaller& gang, Effects& effects, Replies& replies)
      : device_(device), storages_(storages), gang_(gang), effects_(effects), replies_(replies) {}

  // Commands. They throw wire::WireError for what is not the protocol.
  void write(wire::Reader& in);
  void read(wire::Reader& in);
  void copy(wire::Reader& in);
  void resize(wire::Reader& in);
  void share(wire::Reader& in);
  void write_shared(wire::Reader& in);
  void read_shared(wire::Reader& in);

  // None: the payload is to be read into memory first, and the WRITE executed.
  std::optional<Upload> begin_upload(uint64_t storage, uint64_t offset, size_t bytes);
  // The session may have been parked and restored since.
  void finish_upload(const Upload& upload);

  // Whether what was carried out last went through the shared area: the next piece is near.
  bool moves_bulk() const { return moves_bulk_; }
  void note_call() { moves_bulk_ = false; }

 private:
  // What a READ of the range gives, on the host; nullopt if a failure was the answer. `held` keeps it there, also when the session is
  // parked while its client takes the answer.
  std::optional<const void*> readable(uint64_t request, uint64_t id, uint64_t offset, size_t bytes, c10::Storage& held);
  std::optional<const void*> fetched(Entry& entry, uint64_t id, uint64_t offset, size_t bytes, c10::Storage& held);
  // To be called before several devices are made ready for it.
  void before_placed_write(Entry& entry);
  // Copies within the session, if nothing failed before.
  void copy_range(uint64_t id, uint64_t offset, uint64_t source_id, uint64_t source_offset, size_t bytes);
  SharedMemory& shared();

  const Device& device_;
  Storages& storages_;
  GangCaller& gang_;
  Effects& effects_;
  Replies& replies_;
  std::optional<SharedMemory> shared_;
  bool moves_bulk_ = false;
};

}  // namespace forebay::worker
