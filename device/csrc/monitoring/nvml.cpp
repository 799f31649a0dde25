// libnvidia-ml.so.1 where there is no NVIDIA driver: NVIDIA's management library, by which monitors look for GPUs, shows the virtual devices.
// Written after NVML's public documentation; what no virtual device has is in unsupported.cpp.
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

#include "programs.h"

#define NVML extern "C" __attribute__((visibility("default"))) int

namespace {

using forebay::monitoring::kDevices;
using forebay::monitoring::Sight;
using forebay::monitoring::sight_of;

enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kArgumentVersionMismatch = 25,
};

constexpr std::array<const char*, 8> kWords{"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
                                            "Already Initialized", "Not Found", "Insufficient Size"};
constexpr const char* kDriverVersion = "570.0";  // of the CUDA version that torch.version.cuda tells
constexpr const char* kLibraryVersion = "12.570.0";
constexpr int kCudaVersion = 12080;
constexpr int kMajor = 8, kMinor = 0, kAmpere = 7;  // as torch.cuda.get_device_capability()
constexpr int64_t kPeriodNs = 100'000'000;          // of utilisation, at least

struct Handle {
  int64_t asked_ns = 0;
  int64_t held_ns = 0;
  unsigned share = 0;  // percent of the last period
};

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct PciInfoV1 {
  char bus_id[16];
  unsigned domain, bus, device, device_id;
};
struct PciInfoV2 {
  PciInfoV1 first;
  unsigned subsystem_id, reserved[4];
};
struct PciInfo {
  PciInfoV1 first;
  unsigned subsystem_id;
  char bus_id[32];
};

constexpr unsigned kMemoryV2 = sizeof(MemoryV2) | 2U << 24;
constexpr unsigned kNoInstance = ~0U;

std::array<Handle, kDevices> handles;
std::mutex lock;
int uses = 0;                                 // guarded by lock, as what follows
void (*learn)(int device) = nullptr;  // has this process ask the pool for its device's flavor

bool is_device(const Handle* device) {
  const std::lock_guard held(lock);
  return uses > 0 && device >= handles.data() && device < handles.data() + handles.size();
}

unsigned index_of(const Handle* device) { return static_cast<unsigned>(device - handles.data()); }

int copy(const std::string& text, char* target, unsigned size) {
  if (target == nullptr) return kInvalidArgument;
  if (text.size() >= size) return kInsufficientSize;
  std::memcpy(target, text.c_str(), text.size() + 1);
  return kSuccess;
}

std::string padded(unsigned number, int digits) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%0*X", digits, number);
  return text.data();
}

std::string bus_of(unsigned index, int digits) { return padded(0, digits) + ":" + padded(index, 2) + ":00.0"; }

// As forebay.facade.properties has it.
std::string uuid_of(unsigned index) { return "GPU-f04eba00-0000-5000-8000-" + padded(index, 12); }

void fill(PciInfoV1& info, unsigned index) {
  info = {};
  info.bus = index;
  std::memcpy(info.bus_id, bus_of(index, 4).c_str(), bus_of(index, 4).size() + 1);
}

// With its flavor, if a process of ours can find it out.
Sight known_sight_of(const Handle* device) {
  Sight sight = sight_of(index_of(device));
  void (*ask)(int) = nullptr;
  {
    const std::lock_guard held(lock);
    ask = learn;
  }
  if (sight.total != 0 || ask == nullptr) return sight;
  ask(static_cast<int>(index_of(device)));
  return sight_of(index_of(device));
}

// Percent of the time since it was asked before for which a lease was open; the first time whether one is.
unsigned share_of(Handle& device) {
  const Sight sight = sight_of(index_of(&device));
  const int64_t now = forebay::monitoring::now_ns();
  const std::lock_guard held(lock);
  const int64_t period = now - device.asked_ns;
  if (device.asked_ns != 0 && period < kPeriodNs) return device.share;
  const int64_t since = std::clamp<int64_t>(sight.held_ns - device.held_ns, 0, period);
  device.share = device.asked_ns == 0 ? (sight.held ? 100 : 0) : static_cast<unsigned>((100 * since + period / 2) / period);
  device.asked_ns = now;
  device.held_ns = sight.held_ns;
  return device.share;
}

template <typename Entry>
int list_programs(const Handle* device, unsigned* count, Entry* entries, const Entry& empty) {
  if (!is_device(device)) return kInvalidArgument;
  if (count == nullptr) return kInvalidArgument;
  const auto programs = sight_of(index_of(device)).programs;
  const auto room = *count;
  *count = static_cast<unsigned>(programs.size());
  if (programs.empty()) return kSuccess;
  if (room < programs.size() || entries == nullptr) return kInsufficientSize;
  for (const auto& program : programs) {
    *entries = empty;
    entries->pid = program.process;
    entries->used = static_cast<unsigned long long>(program.allocated);
    ++entries;
  }
  return kSuccess;
}

template <typename Value>
int tell(const Handle* device, Value* target, Value value) {
  if (!is_device(device) || target == nullptr) return kInvalidArgument;
  *target = value;
  return kSuccess;
}

int find(unsigned index, Handle** device) {
  if (device == nullptr || index >= forebay::monitoring::device_count()) return kInvalidArgument;
  *device = &handles[index];
  return is_device(*device) ? kSuccess : kUninitialized;
}

int find_named(const char* name, Handle** device, std::string (*name_of)(unsigned)) {
  if (name == nullptr || device == nullptr) return kInvalidArgument;
  for (unsigned index = 0; index < forebay::monitoring::device_count(); ++index) {
    if (name_of(index) == name) return find(index, device);
  }
  return kNotFound;
}

}  // namespace

// Tells this library from NVIDIA's, and gives it the function that asks for a flavor; nothing: there is none any more.
extern "C" __attribute__((visibility("default"))) void forebay_monitoring(void (*function)(int)) {
  const std::lock_guard held(lock);
  learn = function;
}

NVML nvmlInit_v2() {
  const std::lock_guard held(lock);
  ++uses;
  return kSuccess;
}
NVML nvmlInit() { return nvmlInit_v2(); }
NVML nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
NVML nvmlShutdown() {
  const std::lock_guard held(lock);
  if (uses == 0) return kUninitialized;
  --uses;
  return kSuccess;
}
extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int result) {
  if (result == kArgumentVersionMismatch) return "The version of the argument is not known";
  return result >= 0 && result < static_cast<int>(kWords.size()) ? kWords[static_cast<size_t>(result)] : "Unknown Error";
}

NVML nvmlSystemGetDriverVersion(char* version, unsigned length) { return copy(kDriverVersion, version, length); }
NVML nvmlSystemGetNVMLVersion(char* version, unsigned length) { return copy(kLibraryVersion, version, length); }
NVML nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = kCudaVersion;
  return kSuccess;
}
NVML nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }
NVML nvmlSystemGetProcessName(unsigned process, char* name, unsigned length) {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink(("/proc/" + std::to_string(process) + "/exe").c_str(), path.data(), path.size() - 1);
  return size < 0 ? kNotFound : copy(std::string(path.data(), static_cast<size_t>(size)).substr(0, length == 0 ? 0 : length - 1), name, length);
}

NVML nvmlDeviceGetCount_v2(unsigned* count) {
  if (count == nullptr) return kInvalidArgument;
  if (!is_device(handles.data())) return kUninitialized;
  *count = static_cast<unsigned>(forebay::monitoring::device_count());
  return kSuccess;
}
NVML nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle** device) { return find(index, device); }
NVML nvmlDeviceGetHandleByIndex(unsigned index, Handle** device) { return find(index, device); }
NVML nvmlDeviceGetHandleByUUID(const char* uuid, Handle** device) { return find_named(uuid, device, uuid_of); }
NVML nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Handle** device) {
  const int result = find_named(bus_id, device, [](unsigned index) { return bus_of(index, 8); });
  return result == kNotFound ? find_named(bus_id, device, [](unsigned index) { return bus_of(index, 4); }) : result;
}
NVML nvmlDeviceGetHandleByPciBusId(const char* bus_id, Handle** device) { return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device); }

NVML nvmlDeviceGetIndex(Handle* device, unsigned* index) { return tell(device, index, index_of(device)); }
NVML nvmlDeviceGetMinorNumber(Handle* device, unsigned* number) { return tell(device, number, index_of(device)); }
NVML nvmlDeviceGetName(Handle* device, char* name, unsigned length) { return is_device(device) ? copy(known_sight_of(device).name, name, length) : kInvalidArgument; }
NVML nvmlDeviceGetUUID(Handle* device, char* uuid, unsigned length) { return is_device(device) ? copy(uuid_of(index_of(device)), uuid, length) : kInvalidArgument; }
NVML nvmlDeviceGetPciInfo(Handle* device, PciInfoV1* info) {
  if (!is_device(device) || info == nullptr) return kInvalidArgument;
  fill(*info, index_of(device));
  return kSuccess;
}
NVML nvmlDeviceGetPciInfo_v2(Handle* device, PciInfoV2* info) {
  if (!is_device(device) || info == nullptr) return kInvalidArgument;
  *info = {};
  fill(info->first, index_of(device));
  return kSuccess;
}
NVML nvmlDeviceGetPciInfo_v3(Handle* device, PciInfo* info) {
  if (!is_device(device) || info == nullptr) return kInvalidArgument;
  *info = {};
  fill(info->first, index_of(device));
  return copy(bus_of(index_of(device), 8), info->bus_id, sizeof(info->bus_id));
}
NVML nvmlDeviceGetCudaComputeCapability(Handle* device, int* major, int* minor) {
  const int result = tell(device, major, kMajor);
  return result == kSuccess ? tell(device, minor, kMinor) : result;
}
NVML nvmlDeviceGetArchitecture(Handle* device, unsigned* architecture) { return tell<unsigned>(device, architecture, kAmpere); }
NVML nvmlDeviceGetBrand(Handle* device, unsigned* brand) { return tell(device, brand, 0U); }
NVML nvmlDeviceGetComputeMode(Handle* device, unsigned* mode) { return tell(device, mode, 0U); }
NVML nvmlDeviceIsMigDeviceHandle(Handle* device, unsigned* is_part) { return tell(device, is_part, 0U); }
NVML nvmlDeviceGetMaxMigDeviceCount(Handle* device, unsigned* count) { return tell(device, count, 0U); }

NVML nvmlDeviceGetMemoryInfo(Handle* device, Memory* memory) {
  if (!is_device(device) || memory == nullptr) return kInvalidArgument;
  const Sight sight = known_sight_of(device);
  if (sight.total == 0) return kNotSupported;
  const auto total = static_cast<unsigned long long>(sight.total), used = static_cast<unsigned long long>(sight.used);
  *memory = {total, total - used, used};
  return kSuccess;
}
NVML nvmlDeviceGetMemoryInfo_v2(Handle* device, MemoryV2* memory) {
  if (memory == nullptr) return kInvalidArgument;
  if (memory->version != kMemoryV2) return kArgumentVersionMismatch;
  Memory found{};
  const int result = nvmlDeviceGetMemoryInfo(device, &found);
  if (result == kSuccess) *memory = {kMemoryV2, found.total, 0, found.free, found.used};
  return result;
}
NVML nvmlDeviceGetUtilizationRates(Handle* device, Utilization* rates) {
  if (!is_device(device) || rates == nullptr) return kInvalidArgument;
  const unsigned share = share_of(*device);
  *rates = {share, share};
  return kSuccess;
}

NVML nvmlDeviceGetComputeRunningProcesses_v3(Handle* device, unsigned* count, Process* entries) {
  return list_programs(device, count, entries, Process{0, 0, kNoInstance, kNoInstance});
}
NVML nvmlDeviceGetComputeRunningProcesses_v2(Handle* device, unsigned* count, Process* entries) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, entries);
}
NVML nvmlDeviceGetComputeRunningProcesses(Handle* device, unsigned* count, ProcessV1* entries) {
  return list_programs(device, count, entries, ProcessV1{});
}

// Nobody draws on a virtual device, and nobody shares it by NVIDIA's service for that.
#define NO_PROCESSES(name) \
  NVML name(Handle* device, unsigned* count, void*) { return tell(device, count, 0U); }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

NVML nvmlUnitGetCount(unsigned* count) {
  if (count == nullptr) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}
