#include "programs.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>

namespace forebay::monitoring {
namespace {

using Pages = std::vector<std::unique_ptr<Page>>;

std::unique_ptr<Page> read_page(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return nullptr;
  auto page = std::make_unique<Page>();
  struct stat found {};
  const bool own = ::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == ::geteuid();
  const bool whole = own && ::read(fd, page.get(), sizeof(Page)) == static_cast<ssize_t>(sizeof(Page)) && page->mark == kMark;
  ::close(fd);
  return whole && page->count >= 1 && page->count <= static_cast<int64_t>(kDevices) ? std::move(page) : nullptr;
}

// Of the processes that run; of this one alone where it has devices, as its programs know them by their numbers.
Pages pages() {
  const std::string path = folder();
  if (auto own = is_own(path) ? read_page(path + "/" + file_of(::getpid(), started(::getpid()))) : nullptr) {
    Pages alone;
    alone.push_back(std::move(own));
    return alone;
  }
  Pages found;
  each_page(path, [&](const std::string& name, bool runs) {
    if (auto page = runs ? read_page(path + "/" + name) : nullptr) found.push_back(std::move(page));
  });
  return found;
}

std::string name_of(const Device& device) {
  const auto& name = device.names[static_cast<size_t>(device.name & 1)];
  return {name.data(), ::strnlen(name.data(), kNameBytes)};
}

size_t elements(const std::string& list) { return 1 + static_cast<size_t>(std::ranges::count(list, ',')); }

std::optional<size_t> count_of_environment() {
  const char* text = std::getenv("FOREBAY_DEVICES");
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* rest = nullptr;
  const auto number = std::strtoul(text, &rest, 10);
  return *rest == '\0' ? number : elements(text);
}

// What `forebay device` saved: a list of names, in which there are no commas.
std::optional<size_t> count_of_settings() {
  const char *settings = std::getenv("XDG_CONFIG_HOME"), *home = std::getenv("HOME");
  const std::string base = settings != nullptr && *settings != '\0' ? settings : std::string(home == nullptr ? "" : home) + "/.config";
  std::ifstream file(base + "/forebay/devices.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  return elements(text.substr(begin, end - begin));
}

}  // namespace

size_t device_count() {
  size_t count = 0;
  for (const auto& page : pages()) count = std::max(count, static_cast<size_t>(page->count));
  if (count == 0) count = count_of_environment().value_or(count_of_settings().value_or(1));
  return std::clamp<size_t>(count, 1, kDevices);
}

Sight sight_of(size_t device) {
  Sight sight;
  const int64_t now = now_ns();
  for (const auto& page : pages()) {
    Device& told = page->devices[device];
    if (told.total == 0) continue;
    sight.name = name_of(told);
    sight.total += told.total;
    sight.used += told.allocated;
    sight.held_ns += held(told, now);
    sight.held = sight.held || told.held_since_ns != 0;
    if (told.computed != 0) sight.programs.push_back({static_cast<uint32_t>(page->process), std::max<int64_t>(told.allocated, 0)});
  }
  sight.used = std::clamp<int64_t>(sight.used, 0, sight.total);
  std::ranges::sort(sight.programs, {}, &Program::process);
  return sight;
}

}  // namespace forebay::monitoring
