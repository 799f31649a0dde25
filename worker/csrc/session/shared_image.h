// The image with which sessions begin that are copies of another one: a file that all of them map, so that they share what they do not write to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/storage.h"
#include "device/versions.h"
#include "session/image.h"

namespace forebay::worker {

// What is written: a snapshot, and by `hand_over` its storages' bytes.
struct SharedContents {
  const Snapshot& snapshot;
  std::function<void(const Storages::TakeBytes&)> hand_over;
};

// Writes it to an empty file. Returns its bytes. Throws std::system_error, and what `hand_over` throws.
int64_t write_shared_image(int file, const SharedContents& contents);

// Gives the receiver the image, which is mapped where its device is this host. Throws std::system_error, wire::WireError where it is damaged or none.
void read_shared_image(int file, ImageReceiver& receiver);

}  // namespace forebay::worker
