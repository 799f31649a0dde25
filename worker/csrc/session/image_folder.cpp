#include "session/image_folder.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/checksum.h"
#include "base/socket.h"

namespace forebay::worker {

namespace {

namespace fs = std::filesystem;

const std::string kUnfinished = "unfinished";

// Before each frame's body: its size, and the checksum of the body.
struct FrameHead {
  uint64_t bytes;
  uint64_t checksum;
};

uint64_t checksum_of(const std::vector<uint8_t>& body) {
  Checksum checksum;
  checksum.add(body.data(), body.size());
  return checksum.digest();
}

void write_all(int file, std::array<iovec, 3> parts) {
  for (size_t first = 0; first < parts.size();) {
    if (parts[first].iov_len == 0) {
      ++first;
      continue;
    }
    ssize_t count = ::writev(file, &parts[first], static_cast<int>(parts.size() - first));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("writing an image");
    for (size_t part = first; count > 0; ++part) {
      const size_t taken = std::min(static_cast<size_t>(count), parts[part].iov_len);
      parts[part].iov_base = static_cast<uint8_t*>(parts[part].iov_base) + taken;
      parts[part].iov_len -= taken;
      count -= static_cast<ssize_t>(taken);
    }
  }
}

bool read_all(int file, void* target, size_t bytes) {
  auto* next = static_cast<uint8_t*>(target);
  while (bytes > 0) {
    const ssize_t count = ::read(file, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("reading an image");
    if (count == 0) return false;
    next += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

bool is_in_memory(int file) {
  struct statfs system{};
  return ::fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

void give(const std::vector<uint8_t>& body, ImageReceiver& receiver) {
  wire::Reader frame(body.data(), body.size());
  if (*frame.position() != static_cast<uint8_t>(wire::Reply::kBytes)) return receiver.take(frame);
  frame.u8();
  while (!frame.done()) {
    const auto room = receiver.room();
    const size_t bytes = std::min(room.bytes, frame.left());
    if (bytes == 0) throw wire::WireError("more bytes than the image announces");
    std::memcpy(room.data, frame.raw(bytes), bytes);
    receiver.received(bytes);
  }
}

}  // namespace

std::string ImageFolder::recycled(uint64_t base) const {
  const std::string kept = std::to_string(base), unfinished = path_ + "/" + kUnfinished;
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename() == kept || entry.path() == unfinished) continue;
    if (entry.path() == path_of(wire::kSharedImage)) {  // others have it mapped, and this process may
      fs::remove(entry.path());
      continue;
    }
    fs::rename(entry.path(), unfinished);
  }
  return unfinished;
}

void ImageFolder::check_room(const std::string& recycled, int64_t bytes) const {
  const auto space = fs::space(path_);
  std::error_code none;
  const auto there = fs::file_size(recycled, none);
  const double used = static_cast<double>(space.capacity - space.available) - (none ? 0.0 : static_cast<double>(there)) + static_cast<double>(bytes);
  if (used > fill_max_ * static_cast<double>(space.capacity)) throw std::runtime_error("the file system of the images has no room for " + std::to_string(bytes) + " bytes");
}

void ImageFolder::make() const {
  fs::create_directories(path_);
  std::error_code is_anothers;  // of a worker before, which may have had an account of its own in the same group
  fs::permissions(path_, fs::perms::owner_all | fs::perms::group_all, is_anothers);
}

int64_t ImageFolder::write_shared(int64_t bytes, const SharedContents& contents) const {
  make();
  const std::string unfinished = path_ + "/" + kUnfinished;
  check_room(unfinished, bytes);
  const Descriptor file(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw_errno(unfinished);
  ::fchmod(file.get(), 0660);  // likewise
  const int64_t written = write_shared_image(file.get(), contents);
  fs::rename(unfinished, path_of(wire::kSharedImage));
  return written;
}

int64_t ImageFolder::link_shared(const ImageFolder& other) const {
  make();
  const std::string path = path_of(wire::kSharedImage);
  fs::create_hard_link(other.path_of(wire::kSharedImage), path);
  return static_cast<int64_t>(fs::file_size(path));
}

int64_t ImageFolder::write(uint64_t number, uint64_t base, int64_t bytes, const std::function<void(const SendImage&)>& send) const {
  make();
  const std::string unfinished = recycled(base);
  check_room(unfinished, bytes);
  const Descriptor file(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw_errno(unfinished);
  ::fchmod(file.get(), 0660);  // likewise
  send([&](const wire::Writer& head, const uint8_t* payload, size_t payload_bytes) {
    Checksum checksum;
    std::vector<uint8_t> aligned(head.bytes());  // a checksum's pieces are whole blocks, but for the last
    const size_t rest = std::min(payload_bytes, (Checksum::kBlockBytes - aligned.size() % Checksum::kBlockBytes) % Checksum::kBlockBytes);
    aligned.insert(aligned.end(), payload, payload + rest);
    checksum.add(aligned.data(), aligned.size());
    if (payload_bytes > rest) checksum.add(payload + rest, payload_bytes - rest);
    FrameHead frame{aligned.size() + payload_bytes - rest, checksum.digest()};
    write_all(file.get(), {{{&frame, sizeof(frame)}, {aligned.data(), aligned.size()}, {const_cast<uint8_t*>(payload) + rest, payload_bytes - rest}}});
  });
  const off_t end = ::lseek(file.get(), 0, SEEK_CUR);
  if (end < 0 || ::ftruncate(file.get(), end) != 0) throw_errno(unfinished);
  if (!is_in_memory(file.get()) && ::fsync(file.get()) != 0) throw_errno(unfinished);
  fs::rename(unfinished, path_of(number));
  return end;
}

void ImageFolder::read(uint64_t number, ImageReceiver& receiver) const {
  const Descriptor file(::open(path_of(number).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) throw_errno("image " + std::to_string(number));
  if (number == wire::kSharedImage) return read_shared_image(file.get(), receiver);
  std::vector<uint8_t> body;
  for (FrameHead frame{}; read_all(file.get(), &frame, sizeof(frame));) {
    if (frame.bytes == 0 || frame.bytes > wire::kFrameBytesMax) throw wire::WireError("a frame of forbidden size");
    body.resize(frame.bytes);
    if (!read_all(file.get(), body.data(), body.size()) || checksum_of(body) != frame.checksum) throw wire::WireError("what was written is not what is read");
    give(body, receiver);
  }
  if (!receiver.is_whole()) throw wire::WireError("its end is missing");
}

std::vector<uint64_t> ImageFolder::numbers() const {
  std::vector<uint64_t> numbers;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(path_, none)) {
    const std::string name = entry.path().filename();
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) numbers.push_back(number);
  }
  return numbers;
}

void ImageFolder::keep_only(uint64_t number) const {
  std::error_code ignored;
  for (const uint64_t other : numbers()) {
    if (other != number) fs::remove(path_of(other), ignored);
  }
}

void ImageFolder::clear() const {
  std::error_code ignored;
  if (is_set()) fs::remove_all(path_, ignored);
}

}  // namespace forebay::worker
