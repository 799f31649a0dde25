// What a process tells monitors of the same person on the same host about its virtual devices: a file that it maps, and that they read.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>

namespace forebay::monitoring {

constexpr uint64_t kMark = 0x3167'6170'7962'6572;
constexpr size_t kDevices = 16;
constexpr size_t kNameBytes = 96;
constexpr size_t kPageBytes = 4096;  // of memory

// Plain numbers, which one process changes while others read them: by `atomic` alone.
struct Device {
  int64_t allocated;      // bytes
  int64_t total;          // likewise, of the flavor; 0: not known yet
  int64_t held_ns;        // for which leases were open that are closed
  int64_t held_since_ns;  // of the monotonic clock, by the lease that is open; 0: none is
  int64_t computed;       // whether there was a lease
  int64_t name;           // which of the names holds
  std::array<std::array<char, kNameBytes>, 2> names;
};

struct alignas(kPageBytes) Page {
  uint64_t mark;
  int64_t process;
  int64_t started;  // by which another process of this number is told apart
  int64_t count;    // of devices
  std::array<Device, kDevices> devices;
};

inline std::atomic_ref<int64_t> atomic(int64_t& value) { return std::atomic_ref<int64_t>(value); }

// For which leases were open until now. A lease that ends meanwhile may be left out.
inline int64_t held(Device& device, int64_t now) {
  const int64_t since = atomic(device.held_since_ns).load();
  return atomic(device.held_ns).load() + (since == 0 ? 0 : std::max<int64_t>(now - since, 0));
}

inline int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// Of a process, in ticks since the host started; nothing: there is no such process.
inline int64_t started(int64_t process) {
  const int fd = ::open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 1024> text{};
  const ssize_t size = ::read(fd, text.data(), text.size());
  ::close(fd);
  const std::string line(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  size_t place = line.rfind(')');  // the name before may have anything in it
  for (int field = 2; field < 22 && place != std::string::npos; ++field) place = line.find(' ', place + 1);
  return place == std::string::npos ? 0 : std::strtoll(line.c_str() + place, nullptr, 10);
}

// Where the pages of one person's processes lie: each has a home, also where several share an account.
inline std::string folder() {
  const char* home = std::getenv("HOME");
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char* letter = home == nullptr ? "" : home; *letter != '\0'; ++letter) hash = (hash ^ static_cast<unsigned char>(*letter)) * 1099511628211ULL;
  return "/dev/shm/forebay-" + std::to_string(::geteuid()) + "-" + std::to_string(hash);
}

// Nobody else can have put anything into it.
inline bool is_own(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0;
}

inline std::string file_of(int64_t process, int64_t since) { return std::to_string(process) + "-" + std::to_string(since); }

// For each page by its name: whether its process still runs.
inline void each_page(const std::string& path, const std::function<void(const std::string&, bool)>& take) {
  DIR* entries = is_own(path) ? ::opendir(path.c_str()) : nullptr;
  if (entries == nullptr) return;
  while (const dirent* entry = ::readdir(entries)) {
    char* rest = nullptr;
    const int64_t process = std::strtoll(entry->d_name, &rest, 10);
    if (process > 0 && *rest == '-') take(entry->d_name, std::strtoll(rest + 1, nullptr, 10) == started(process));
  }
  ::closedir(entries);
}

}  // namespace forebay::monitoring
