// The file begins with the size of its head; then come frames as of any image, each with its size and a checksum, and on the next page the bytes of
// storages, each at a multiple of kSharedAlignment.
#include "session/shared_image.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/checksum.h"
#include "base/memory.h"
#include "base/socket.h"

namespace forebay::worker {

namespace {

constexpr int64_t kSharedAlignment = 64;  // as PyTorch aligns its allocations
constexpr int64_t kSharedPageBytes = 4096;
constexpr uint64_t kSharedHeadBytesMax = uint64_t{1} << 30;

// Before each frame of the head.
struct SharedFrame {
  uint64_t bytes;
  uint64_t checksum;
};

int64_t aligned(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

uint64_t digest_of(const uint8_t* data, size_t bytes) {
  Checksum checksum;
  checksum.add(data, bytes);
  return checksum.digest();
}

void write_at(int file, const uint8_t* data, int64_t bytes, int64_t place) {
  while (bytes > 0) {
    const ssize_t count = ::pwrite(file, data, static_cast<size_t>(bytes), place);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("writing an image");
    data += count;
    bytes -= count;
    place += count;
  }
}

std::vector<uint8_t> head_of(const Snapshot& snapshot) {
  std::vector<uint8_t> frames(sizeof(uint64_t));
  send_head(snapshot, nullptr, "", nullptr, [&](const wire::Writer& head, const uint8_t*, size_t) {
    const auto& body = head.bytes();
    const SharedFrame frame{body.size(), digest_of(body.data(), body.size())};
    const auto* begin = reinterpret_cast<const uint8_t*>(&frame);
    frames.insert(frames.end(), begin, begin + sizeof(frame));
    frames.insert(frames.end(), body.begin(), body.end());
  });
  const uint64_t size = frames.size();
  std::memcpy(frames.data(), &size, sizeof(size));
  return frames;
}

// A file's memory, private to this process once it writes there.
class Mapping {
 public:
  Mapping(int file, size_t bytes) : bytes_(bytes), data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0)) {
    if (data_ == MAP_FAILED) throw_errno("mapping an image");
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t bytes() const { return bytes_; }
  // Throws wire::WireError beyond its end.
  uint8_t* at(int64_t place, int64_t bytes) const {
    if (place < 0 || bytes < 0 || place > static_cast<int64_t>(bytes_) - bytes) throw wire::WireError("the end of an image is missing");
    return data() + place;
  }

 private:
  const size_t bytes_;
  void* const data_;
};

// Where each storage's bytes lie, one after the other.
class Places {
 public:
  explicit Places(int64_t head_bytes) : next_(aligned(head_bytes, kSharedPageBytes)) {}
  int64_t take(int64_t bytes) {
    const int64_t place = next_;
    next_ = aligned(place + bytes, kSharedAlignment);
    return place;
  }
  int64_t end() const { return next_; }

 private:
  int64_t next_;
};

c10::Storage storage_in(const std::shared_ptr<const Mapping>& mapping, int64_t place, int64_t bytes) {
  auto memory = adopt_on_host(mapping->at(place, bytes), bytes, [mapping] {}, /*is_counted=*/true);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes), std::move(memory), c10::GetAllocator(c10::kCPU),
                                                            /*resizable=*/false));
}

// Returns the size of the head.
int64_t take_head(const Mapping& mapping, ImageReceiver& receiver) {
  uint64_t size = 0;
  std::memcpy(&size, mapping.at(0, sizeof(size)), sizeof(size));
  if (size < sizeof(size) || size > kSharedHeadBytesMax) throw wire::WireError("a head of forbidden size");
  const auto end = static_cast<int64_t>(size);
  mapping.at(0, end);
  for (int64_t place = sizeof(size); place < end;) {
    SharedFrame frame{};
    std::memcpy(&frame, mapping.at(place, sizeof(frame)), sizeof(frame));
    place += static_cast<int64_t>(sizeof(frame));
    if (frame.bytes == 0 || frame.bytes > static_cast<uint64_t>(end - place)) throw wire::WireError("a frame of forbidden size");
    const uint8_t* body = mapping.at(place, static_cast<int64_t>(frame.bytes));
    if (digest_of(body, frame.bytes) != frame.checksum) throw wire::WireError("what was written is not what is read");
    wire::Reader reader(body, frame.bytes);
    receiver.take(reader);
    place += static_cast<int64_t>(frame.bytes);
  }
  return end;
}

void copy_bytes(const Mapping& mapping, int64_t head_bytes, ImageReceiver& receiver) {
  Places places(head_bytes);
  for (const int64_t bytes : receiver.sizes()) {
    const int64_t place = places.take(bytes);
    for (int64_t done = 0; done < bytes;) {
      const auto room = receiver.room();
      const auto part = std::min(static_cast<int64_t>(room.bytes), bytes - done);
      std::memcpy(room.data, mapping.at(place + done, part), static_cast<size_t>(part));
      receiver.received(static_cast<size_t>(part));
      done += part;
    }
  }
}

}  // namespace

int64_t write_shared_image(int file, const SharedContents& contents) {
  const auto head = head_of(contents.snapshot);
  write_at(file, head.data(), static_cast<int64_t>(head.size()), 0);
  Places places(static_cast<int64_t>(head.size()));
  auto item = contents.snapshot.items.begin();
  int64_t place = 0, left = 0;
  contents.hand_over([&](const uint8_t* data, int64_t bytes) {
    while (bytes > 0) {
      for (; left == 0; ++item) {
        if (item->has_bytes) place = places.take(left = item->bytes);
      }
      const int64_t part = std::min(bytes, left);
      write_at(file, data, part, place);
      data += part;
      bytes -= part;
      place += part;
      left -= part;
    }
  });
  if (::ftruncate(file, places.end()) != 0) throw_errno("writing an image");
  return places.end();
}

void read_shared_image(int file, ImageReceiver& receiver) {
  struct stat status {};
  if (::fstat(file, &status) != 0) throw_errno("reading an image");
  if (status.st_size <= 0) throw wire::WireError("it is empty");
  const auto mapping = std::make_shared<const Mapping>(file, static_cast<size_t>(status.st_size));
  uint64_t head_bytes = 0;
  std::memcpy(&head_bytes, mapping->at(0, sizeof(head_bytes)), sizeof(head_bytes));
  if (head_bytes > kSharedHeadBytesMax) throw wire::WireError("a head of forbidden size");
  auto places = std::make_shared<Places>(static_cast<int64_t>(head_bytes));
  if (receiver.is_on_host()) receiver.map_by([mapping, places](int64_t bytes) { return storage_in(mapping, places->take(bytes), bytes); });
  const int64_t end = take_head(*mapping, receiver);
  if (!receiver.is_on_host()) copy_bytes(*mapping, end, receiver);
  if (!receiver.is_whole()) throw wire::WireError("its end is missing");
  receiver.map_by(nullptr);
}

}  // namespace forebay::worker
