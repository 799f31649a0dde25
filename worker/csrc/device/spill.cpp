#include "device/spill.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/checksum.h"

namespace forebay::worker {

namespace {

// Some file systems have no files without a name: there it has one for as long as it takes to remove it.
int open_nameless(const std::string& directory) {
  const int file = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, S_IRUSR | S_IWUSR);
  if (file >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) throw_errno("a file to spill to in " + directory);
  std::string path = directory + "/spill-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named < 0) throw_errno("a file to spill to in " + directory);
  ::unlink(path.c_str());
  return named;
}

std::string damage(const SpillFile::Place& place, const std::string& what) {
  return "the tensors that were spilled to disk cannot be read back: " + what + " (" + std::to_string(place.bytes) + " bytes at " + std::to_string(place.offset) + ")";
}

void check(const SpillFile::Place& place, const Checksum& sum) {
  if (sum.digest() != place.checksum) throw SpillDamaged(damage(place, "their checksum is another"));
}

// Moves past what a call has done.
void advance(std::vector<iovec>& parts, size_t& first, size_t done) {
  while (first < parts.size() && done >= parts[first].iov_len) done -= parts[first++].iov_len;
  if (first == parts.size()) return;
  parts[first].iov_base = static_cast<uint8_t*>(parts[first].iov_base) + done;
  parts[first].iov_len -= done;
}

}  // namespace

SpillFile::SpillFile(const std::string& directory) : file_(open_nameless(directory)) {}

std::vector<SpillFile::Place> SpillFile::write(const std::vector<Source>& sources) {
  std::vector<Place> places;
  std::vector<Source> chunk;
  int64_t end = end_, start = end_, chunk_bytes = 0;
  const auto put = [&] {
    write_at(start, chunk);
    start += chunk_bytes;
    chunk.clear();
    chunk_bytes = 0;
  };
  try {
    for (const auto& source : sources) {
      Checksum sum;
      for (int64_t done = 0; done < source.bytes;) {
        const int64_t bytes = std::min(source.bytes - done, kChunkBytes);
        sum.add(source.data + done, static_cast<size_t>(bytes));
        chunk.push_back({source.data + done, bytes});
        chunk_bytes += bytes;
        done += bytes;
        if (chunk_bytes >= kChunkBytes || chunk.size() == IOV_MAX) put();
      }
      places.push_back({end, source.bytes, sum.digest()});
      end += source.bytes;
    }
    put();
  } catch (...) {  // what was written of it is given back
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), end_);
    throw;
  }
  end_ = end;
  return places;
}

void SpillFile::write_at(int64_t offset, const std::vector<Source>& sources) const {
  std::vector<iovec> parts;
  for (const auto& source : sources) parts.push_back({const_cast<uint8_t*>(source.data), static_cast<size_t>(source.bytes)});
  for (size_t first = 0; first < parts.size();) {
    const auto count = ::pwritev(file_.get(), &parts[first], static_cast<int>(parts.size() - first), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("spilling tensors to disk");
    offset += count;
    advance(parts, first, static_cast<size_t>(count));
  }
}

// Small neighbours are read together, large ones by themselves.
void SpillFile::read(const std::vector<Target>& targets) const {
  for (size_t first = 0; first < targets.size();) {
    size_t last = first;
    int64_t bytes = 0;
    while (last < targets.size() && last - first < IOV_MAX && bytes + targets[last].place.bytes <= kChunkBytes &&
           targets[last].place.offset == targets[first].place.offset + bytes) {
      bytes += targets[last++].place.bytes;
    }
    if (last == first) {
      read_large(targets[first++]);
    } else {
      read_run(&targets[first], &targets[last - 1] + 1);
      first = last;
    }
  }
}

void SpillFile::read_run(const Target* begin, const Target* end) const {
  std::vector<iovec> parts;
  for (const auto* target = begin; target != end; ++target) parts.push_back({target->data, static_cast<size_t>(target->place.bytes)});
  int64_t offset = begin->place.offset;
  for (size_t first = 0; first < parts.size();) {
    if (parts[first].iov_len == 0) {
      ++first;
      continue;
    }
    const auto count = ::preadv(file_.get(), &parts[first], static_cast<int>(parts.size() - first), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("reading back tensors that were spilled to disk");
    if (count == 0) throw SpillDamaged(damage(begin->place, "the file is shorter"));
    offset += count;
    advance(parts, first, static_cast<size_t>(count));
  }
  for (const auto* target = begin; target != end; ++target) {
    Checksum sum;
    sum.add(target->data, static_cast<size_t>(target->place.bytes));
    check(target->place, sum);
  }
}

void SpillFile::read_large(const Target& target) const {
  Checksum sum;
  for (int64_t done = 0; done < target.place.bytes;) {
    const auto wanted = std::min(kChunkBytes, target.place.bytes - done);
    for (int64_t got = 0; got < wanted;) {
      const auto count = ::pread(file_.get(), target.data + done + got, static_cast<size_t>(wanted - got), target.place.offset + done + got);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno("reading back tensors that were spilled to disk");
      if (count == 0) throw SpillDamaged(damage(target.place, "the file is shorter"));
      got += count;
    }
    sum.add(target.data + done, static_cast<size_t>(wanted));
    done += wanted;
  }
  check(target.place, sum);
}

}  // namespace forebay::worker
