// The command stream between a virtual device and its worker; docs/wire.md is the specification.
//
// This header knows bytes and limits only: no torch, no sockets, no threads. Both sides of the trust boundary
// compile it, so every read is bounds-checked and every count is compared with its limit before anything is
// allocated. Integers are LEB128 varints (signed ones zigzag), floats are IEEE 754 binary64, little-endian.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace forebay::wire {

constexpr uint32_t kMagic = 0x59414246;  // "FBAY"
constexpr uint16_t kVersion = 5;

constexpr size_t kFrameHeaderBytes = 4;
constexpr size_t kFrameBytesMax = size_t{16} << 20;
constexpr size_t kChunkBytesMax = size_t{4} << 20;  // payload of one WRITE or DATA
constexpr size_t kSharedBytesMax = size_t{128} << 20;  // the area of memory that both sides of a Unix socket map
constexpr size_t kSharedHeaderBytes = 4096;  // before its payload; begins with a u32: how many WRITE_SHARED the worker has read out
constexpr size_t kTicketBytes = 32;
constexpr size_t kStringBytesMax = 4096;
constexpr size_t kMessageBytesMax = 16384;
constexpr size_t kLibrariesBytesMax = size_t{64} << 20;  // of those that go along with a session
constexpr size_t kDimsMax = 64;
constexpr size_t kItemsMax = 65536;       // of one list
constexpr size_t kArgumentsMax = 256;     // of one operator
constexpr size_t kOperatorsMax = 8192;    // of one connection
constexpr size_t kTemplatesMax = 65536;   // before the client forgets them all
constexpr size_t kTemplateItemsMax = 65536;               // of all lists of one template
constexpr size_t kTemplatesItemsMax = size_t{1} << 22;    // arguments, outputs and list items of all templates
constexpr size_t kTemplatesBytesMax = size_t{64} << 20;   // encoded, of all templates
constexpr size_t kStoragesMax = size_t{1} << 22;  // alive at a time
constexpr size_t kStepsMax = 65536;                // kept of all segments
constexpr size_t kStepWordsMax = size_t{1} << 21;  // of all kept steps
constexpr size_t kStepChildrenMax = 1024;          // that follow one step
constexpr size_t kFreedKeptMax = 4096;             // storages freed before one step; a longer list is not kept
constexpr size_t kTimesMax = size_t{1} << 19;       // calls whose times are noted before they are told
constexpr size_t kLoneWorkMax = 65536;              // operators, each with a reason, that ran on one device of several
constexpr size_t kGroupsMax = 256;                  // process groups of a session
constexpr size_t kMembersMax = 1024;                // of a process group
constexpr size_t kKernelsMax = 4096;                // of programs, of a session
constexpr size_t kKernelBytesMax = size_t{1} << 20;  // of one, in its compiler's representation
constexpr size_t kPatienceMsMax = size_t{7} * 24 * 3600 * 1000;  // of its members with each other
constexpr int64_t kStorageBytesMax = int64_t{1} << 46;
constexpr int64_t kSparsePlacesMax = int64_t{1} << 61;  // of a sparse tensor, filled or not

// Client to worker. Several commands share a frame; HELLO comes first and alone.
enum class Command : uint8_t {
  kHello = 1,
  kOperator = 2,
  kTemplate = 3,
  kCall = 4,
  kAsk = 5,
  kAllocate = 6,
  kResize = 7,
  kFree = 8,
  kWrite = 9,
  kRead = 10,
  kSync = 11,
  kMark = 12,
  kForget = 13,
  kShare = 14,
  kWriteShared = 15,
  kReadShared = 16,
  kCopy = 17,
  kLeave = 18,
  kFetch = 19,  // of another worker: comes first and alone, in place of HELLO
  kFollow = 20,
  kStep = 21,
  kCut = 22,
  kTime = 23,
  kTellTimes = 24,
  kHeard = 25,
  kSettings = 26,
  kTellSegments = 27,
  kTellGang = 28,
  kLimit = 29,  // of a gang's first worker to the others
  kDoor = 30, kMember = 31, kExchange = 32, kReduce = 33,
  kPart = 34, kReduceEach = 39,  // REDUCE_EACH: of a gang's first worker to the others
  kMeet = 35,  // of another member's worker: comes first and alone at a process group's door
  kKernel = 36,
  kLaunch = 37, kResume = 38 /* in place of HELLO */, kKeep = 42, kRestore = 43, kTraces = 44,
  kProgram = 45, kExecute = 46, kExecuteCalling = 47, kReturned = 48, kCheckpoint = 49, kTellCheckpoints = 50, kGoBack = 51,
  kDropCheckpoint = 52, kRenumber = 53,
};

// Of PyTorch's settings that say how a device computes; docs/wire.md, SETTINGS.
enum Settings : uint64_t {
  kTf32Products = 1 << 0,
  kTf32Convolutions = 1 << 1,
  kTf32Recurrent = 1 << 2,
  kFp16Reduction = 1 << 3,
  kBf16Reduction = 1 << 4,
  kFp16Accumulation = 1 << 5,
  kCudnn = 1 << 6,
  kCudnnBenchmark = 1 << 7,
  kCudnnDeterministic = 1 << 8,
  kDeterministic = 1 << 9,
  kDeterministicWarns = 1 << 10,
  kCompiled = 1 << 11,  // libraries may be made of segments; not PyTorch's, and the one that hosts' devices heed
  kFp16Whole = 1 << 12, kBf16Whole = 1 << 13, kRecomputed = 1 << 14,  // no split-K; not PyTorch's: what calls made may be computed again
};
constexpr uint64_t kSettingsMax = (1 << 15) - 1;
// PyTorch's own, which a worker begins with.
constexpr uint64_t kSettingsDefault = kTf32Convolutions | kTf32Recurrent | kFp16Reduction | kBf16Reduction | kCudnn;

// Worker to client, one a frame.
enum class Reply : uint8_t {
  kWelcome = 65,
  kRefused = 66,
  kData = 67,
  kDone = 68,
  kOutputs = 69,
  kFailure = 70,
  kShared = 71,
  kImage = 72,  // these answer FETCH
  kCause = 73,
  kStorages = 74,
  kBytes = 75,
  kTimes = 76,
  kSegments = 77,
  kGang = 78,
  kDoor = 79,
  kMeeting = 80,  // at a process group's door: before a MEET, and in answer to it
  kMet = 81,
  kLibraries = 82, kResumed = 83, kKept = 85, kHoldings = 86, kSummand = 87, kVersions = 92, kSegmentStates = 93, kProducts = 94,  // of images; answers RESUME, KEEP; of images
  kCompiled = 88, kCallback = 89, kCheckpoints = 90, kWentBack = 91,  // answers PROGRAM; before that to EXECUTE_CALLING; answer the last two commands
};

// What members of a process group carry out together.
enum class Collective : uint8_t {
  kBroadcast = 1,
  kAllReduce = 2,
  kReduce = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kMessage = 9,  // a send and the receive of it
  kBarrier = 10,
};

enum class Reduction : uint8_t { kSum = 0, kAverage = 1, kProduct = 2, kMin = 3, kMax = 4 };

enum class FailureCode : uint8_t {
  kOperator = 1,      // the operator itself failed
  kOutOfMemory = 2,   // the flavor's memory limit, or the device's
  kNeverMade = 3,     // what it uses was never made, for an earlier failure
  kUnsupported = 4,   // this worker has no such kernel
  kGeometry = 5,      // the result is not what the client predicted
  kIndex = 6,         // as kOperator, of an exception that Python has a type for: an index out of bounds,
  kValue = 7,         // a wrong value,
  kType = 8,          // a wrong type,
  kLinalg = 9,        // a matrix that has no such decomposition
  kDeviceLost = 10,   // as kOperator, and the device carries out nothing any more: all tensors are lost
};

enum class Tag : uint8_t {
  kNone = 0,
  kTensor = 1,         // geometry; bound to storage id and offset
  kScalarTensor = 2,   // dtype, wrapped; bound to a value
  kTensorList = 3,     // items of the three tags above
  kInt = 4,
  kDouble = 5,         // bound to a value
  kBool = 6,
  kScalarDouble = 7,   // bound to a value, as are the next three
  kScalarInt = 8,
  kScalarBool = 9,
  kScalarComplex = 10,
  kIntList = 11,
  kDoubleList = 12,    // bound to values
  kBoolList = 13,
  kString = 14,
  kDevice = 15,        // 0: host, 1: the worker's device
  kGenerator = 16,     // the worker's, set to the call's seed and counter
  kScalarList = 17,    // items of the scalar tags
  kSparse = 18,        // layout, flags, sizes, geometries of its parts; each bound as a tensor
};

enum class OutputTag : uint8_t {
  kNone = 0,
  kNew = 1,       // geometry, storage bytes; bound to a new storage id
  kSame = 2,      // index of the tensor argument it is
  kList = 3,      // items of the two tags above
  kUnknown = 4,   // the worker tells (ASK)
  kInt = 5,       // values, told by the worker (ASK)
  kDouble = 6,
  kBool = 7,
  kComplex = 8,
  kSparse = 9,    // layout, flags, sizes, its parts as kNew; told by the worker (ASK)
};

constexpr uint8_t kFlagConj = 1;
constexpr uint8_t kFlagNeg = 2;
constexpr uint8_t kTemplateRandom = 1;  // calls carry (seed, counter); the other flags: default_dtype.h
constexpr uint8_t kSparseCoalesced = 1;  // no place comes twice, and they come in order

// What a peer sent cannot be read as this protocol.
struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Writer {
 public:
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  size_t size() const { return bytes_.size(); }
  void clear() { bytes_.clear(); }

  void u8(uint8_t value) { bytes_.push_back(value); }
  void command(Command value) { u8(static_cast<uint8_t>(value)); }
  void reply(Reply value) { u8(static_cast<uint8_t>(value)); }
  void tag(Tag value) { u8(static_cast<uint8_t>(value)); }
  void tag(OutputTag value) { u8(static_cast<uint8_t>(value)); }

  void varint(uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<uint8_t>(value) | 0x80);
      value >>= 7;
    }
    bytes_.push_back(static_cast<uint8_t>(value));
  }
  void zigzag(int64_t value) { varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63)); }
  void f64(double value) { raw(&value, sizeof(value)); }
  void u64(uint64_t value) { raw(&value, sizeof(value)); }
  void raw(const void* data, size_t size) {
    const auto* first = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  void string(std::string_view text) {
    varint(text.size());
    raw(text.data(), text.size());
  }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  bool done() const { return next_ == end_; }
  size_t left() const { return static_cast<size_t>(end_ - next_); }
  const uint8_t* position() const { return next_; }

  uint8_t u8() {
    need(1);
    return *next_++;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = u8();
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw WireError("an integer longer than 64 bits");
  }
  int64_t zigzag() {
    const uint64_t value = varint();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  // A count, an index or a size that must not exceed `most`.
  uint64_t bounded(uint64_t most, const char* what) {
    const uint64_t value = varint();
    if (value > most) {
      throw WireError(std::string(what) + " is " + std::to_string(value) + ", at most " + std::to_string(most) + " is accepted");
    }
    return value;
  }
  // As bounded, for a list whose items take at least one byte each: the count is also held against what is left.
  size_t count(uint64_t most, const char* what) {
    const uint64_t value = bounded(most, what);
    if (value > left()) throw WireError(std::string(what) + " is " + std::to_string(value) + ", the frame ends before");
    return static_cast<size_t>(value);
  }
  double f64() {
    double value;
    copy(&value, sizeof(value));
    return value;
  }
  uint64_t u64() {
    uint64_t value;
    copy(&value, sizeof(value));
    return value;
  }
  const uint8_t* raw(size_t size) {
    need(size);
    const uint8_t* first = next_;
    next_ += size;
    return first;
  }
  std::string string(size_t most = kStringBytesMax) {
    const size_t size = count(most, "the length of a string");
    return std::string(reinterpret_cast<const char*>(raw(size)), size);
  }

 private:
  void need(size_t size) const {
    if (size > left()) throw WireError("a frame ends in the middle of a command");
  }
  void copy(void* target, size_t size) { std::memcpy(target, raw(size), size); }

  const uint8_t* next_;
  const uint8_t* end_;
};

// The bytes to put before a frame's body.
inline void put_frame_header(uint8_t* target, size_t body_bytes) {
  const auto size = static_cast<uint32_t>(body_bytes);
  std::memcpy(target, &size, sizeof(size));
}

// The body's size from a frame header; throws if it is empty or larger than a frame may be.
inline size_t get_frame_header(const uint8_t* header) {
  uint32_t size;
  std::memcpy(&size, header, sizeof(size));
  if (size == 0 || size > kFrameBytesMax) {
    throw WireError("a frame of " + std::to_string(size) + " bytes, between 1 and " + std::to_string(kFrameBytesMax) + " are accepted");
  }
  return size;
}

// What a call binds, as 64-bit words. How each is written in a CALL, and what is expected of it when the call comes again.
enum class Word : uint8_t {
  kStorage,  // varint; a storage that exists
  kNew,      // varint; a storage the call makes
  kNumber,   // varint: an offset, a zigzag integer
  kBits,     // u64: a binary64, a seed
  kByte,     // u8
  kCounter,  // varint; of a random call
};

inline void put_word(Writer& out, Word kind, uint64_t word) {
  if (kind == Word::kBits) return out.u64(word);
  if (kind == Word::kByte) return out.u8(static_cast<uint8_t>(word));
  out.varint(word);
}

inline uint64_t get_word(Reader& in, Word kind) {
  if (kind == Word::kBits) return in.u64();
  return kind == Word::kByte ? in.u8() : in.varint();
}

inline uint64_t zigzag_word(int64_t value) { return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63); }
inline int64_t zigzag_value(uint64_t word) { return static_cast<int64_t>(word >> 1) ^ -static_cast<int64_t>(word & 1); }

inline uint64_t bits_word(double value) {
  uint64_t word;
  std::memcpy(&word, &value, sizeof(word));
  return word;
}
inline double bits_value(uint64_t word) {
  double value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// Sizes and strides in elements; dtype is c10::ScalarType's number.
struct Geometry {
  uint8_t dtype = 0;
  uint8_t flags = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

template <typename Sizes, typename Strides>
void put_geometry(Writer& out, uint8_t dtype, uint8_t flags, const Sizes& sizes, const Strides& strides) {
  out.u8(dtype);
  out.u8(flags);
  out.varint(sizes.size());
  for (const int64_t size : sizes) out.varint(static_cast<uint64_t>(size));
  for (const int64_t stride : strides) out.varint(static_cast<uint64_t>(stride));
}

// Elements of a tensor; nothing where they are more than can be served, as those of an expanded one may be.
template <typename Sizes>
std::optional<int64_t> elements_of(const Sizes& sizes) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  __int128 count = 1;
  for (const int64_t size : sizes) {
    count *= size;
    if (count > kStorageBytesMax) return std::nullopt;
  }
  return static_cast<int64_t>(count);
}

// Whether it would be taken: a tensor without elements, or a dimension of one element, may have sizes and strides beyond any storage.
template <typename Sizes, typename Strides>
bool carries_geometry(const Sizes& sizes, const Strides& strides) {
  const auto fits = [](int64_t number) { return number >= 0 && number <= kStorageBytesMax; };
  return sizes.size() <= kDimsMax && std::all_of(sizes.begin(), sizes.end(), fits) && std::all_of(strides.begin(), strides.end(), fits) &&
         elements_of(sizes).has_value();
}

inline Geometry get_geometry(Reader& in) {
  Geometry geometry;
  geometry.dtype = in.u8();
  geometry.flags = in.u8();
  const size_t dims = in.count(kDimsMax, "the number of dimensions");
  geometry.sizes.resize(dims);
  geometry.strides.resize(dims);
  for (auto& size : geometry.sizes) size = static_cast<int64_t>(in.bounded(kStorageBytesMax, "a size"));
  for (auto& stride : geometry.strides) stride = static_cast<int64_t>(in.bounded(kStorageBytesMax, "a stride"));
  return geometry;
}

// Elements a view spans from its offset on (0 when it has none); throws where that overflows what a storage may hold.
inline int64_t span_of(const Geometry& geometry) {
  if (std::find(geometry.sizes.begin(), geometry.sizes.end(), 0) != geometry.sizes.end()) return 0;
  __int128 last = 0;
  for (size_t dim = 0; dim < geometry.sizes.size(); ++dim) {
    last += static_cast<__int128>(geometry.sizes[dim] - 1) * geometry.strides[dim];
    if (last >= kStorageBytesMax) throw WireError("a tensor larger than a storage may be");
  }
  return static_cast<int64_t>(last) + 1;
}

// Of what a sparse tensor consists: indices and values (COO); or compressed indices, plain indices and values (CSR, CSC, BSR, BSC).
// The layout is c10::Layout's number; 0 for one that is not served.
inline size_t sparse_parts(uint8_t layout) {
  constexpr uint8_t kCoo = 1, kCsr = 2, kCsc = 4, kBsr = 5, kBsc = 6;
  if (layout == kCoo) return 2;
  return layout == kCsr || layout == kCsc || layout == kBsr || layout == kBsc ? 3 : 0;
}

struct SparseHead {
  uint8_t layout = 0;
  bool coalesced = false;
  std::vector<int64_t> sizes;
};

template <typename Sizes>
void put_sparse_head(Writer& out, uint8_t layout, bool coalesced, const Sizes& sizes) {
  out.u8(layout);
  out.u8(coalesced ? kSparseCoalesced : 0);
  out.varint(sizes.size());
  for (const int64_t size : sizes) out.varint(static_cast<uint64_t>(size));
}

// Whether a sparse tensor's sizes would be taken: places are counted in 64 bits.
template <typename Sizes>
bool carries_sparse_sizes(const Sizes& sizes) {
  if (sizes.size() > kDimsMax) return false;
  __int128 places = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || size > kStorageBytesMax) return false;
    places *= size > 0 ? size : 1;
    if (places > kSparsePlacesMax) return false;
  }
  return true;
}

inline SparseHead get_sparse_head(Reader& in) {
  SparseHead head;
  head.layout = in.u8();
  if (sparse_parts(head.layout) == 0) throw WireError("a sparse tensor of unknown layout " + std::to_string(head.layout));
  const uint8_t flags = in.u8();
  if (flags > kSparseCoalesced) throw WireError("a sparse tensor of unknown flags " + std::to_string(flags));
  head.coalesced = flags != 0;
  head.sizes.resize(in.count(kDimsMax, "the number of dimensions"));
  for (auto& size : head.sizes) size = static_cast<int64_t>(in.bounded(kStorageBytesMax, "a size"));
  if (!carries_sparse_sizes(head.sizes)) throw WireError("a sparse tensor of more places than can be counted");
  return head;
}

// One argument of a template. Which members mean something depends on the tag.
struct Argument {
  Tag tag = Tag::kNone;
  Geometry geometry;            // kTensor
  uint8_t dtype = 0;            // kScalarTensor
  uint8_t layout = 0;           // kSparse
  bool flag = false;            // kBool's value, kScalarTensor's "wrapped number", kDevice: is the worker's, kSparse: is coalesced
  int64_t integer = 0;          // kInt
  uint64_t count = 0;           // kDoubleList: how many values a call binds
  std::vector<int64_t> list;    // kIntList, kBoolList, kSparse: sizes
  std::string text;             // kString
  std::vector<Argument> items;  // kTensorList, kScalarList, kSparse: its parts
};

struct Output {
  OutputTag tag = OutputTag::kNone;
  Geometry geometry;           // kNew
  int64_t storage_bytes = 0;   // kNew
  uint64_t same = 0;           // kSame
  std::vector<Output> items;   // kList
};

struct Template {
  uint64_t op = 0;
  uint8_t flags = 0;
  std::vector<Argument> arguments;
  std::vector<Output> outputs;
};

namespace detail {

inline Tag get_tag(Reader& in) {
  const uint8_t tag = in.u8();
  if (tag > static_cast<uint8_t>(Tag::kSparse)) throw WireError("an argument of unknown kind " + std::to_string(tag));
  return static_cast<Tag>(tag);
}

inline bool is_tensor_item(Tag tag) { return tag == Tag::kNone || tag == Tag::kTensor || tag == Tag::kScalarTensor; }
inline bool is_scalar_item(Tag tag) { return tag >= Tag::kScalarDouble && tag <= Tag::kScalarComplex; }

// How many more items a template's lists may hold together: an item takes far more room in memory than in a frame.
inline size_t take_items(Reader& in, size_t& left) {
  const size_t count = in.count(left, "the number of items in a template's lists");
  left -= count;
  return count;
}

inline Argument get_argument(Reader& in, bool nested, size_t& items_left);

inline void get_items(Reader& in, Argument& argument, size_t& items_left) {
  argument.items.resize(take_items(in, items_left));
  for (auto& item : argument.items) {
    item = get_argument(in, true, items_left);
    const bool fits = argument.tag == Tag::kTensorList ? is_tensor_item(item.tag) : is_scalar_item(item.tag);
    if (!fits) throw WireError("a list holds an item of another kind");
  }
}

inline void get_sparse(Reader& in, Argument& argument) {
  SparseHead head = get_sparse_head(in);
  argument.layout = head.layout;
  argument.flag = head.coalesced;
  argument.list = std::move(head.sizes);
  argument.items.resize(sparse_parts(head.layout));
  for (auto& part : argument.items) {
    part.tag = Tag::kTensor;
    part.geometry = get_geometry(in);
  }
}

inline Argument get_argument(Reader& in, bool nested, size_t& items_left) {
  Argument argument;
  argument.tag = get_tag(in);
  switch (argument.tag) {
    case Tag::kTensor:
      argument.geometry = get_geometry(in);
      break;
    case Tag::kScalarTensor:
      argument.dtype = in.u8();
      argument.flag = in.u8() != 0;
      break;
    case Tag::kTensorList:
    case Tag::kScalarList:
      if (nested) throw WireError("a list within a list");
      get_items(in, argument, items_left);
      break;
    case Tag::kSparse:
      get_sparse(in, argument);
      break;
    case Tag::kInt:
      argument.integer = in.zigzag();
      break;
    case Tag::kBool:
    case Tag::kDevice:
      argument.flag = in.u8() != 0;
      break;
    case Tag::kIntList:
      argument.list.resize(in.count(kItemsMax, "the length of a list"));
      for (auto& item : argument.list) item = in.zigzag();
      break;
    case Tag::kBoolList:
      argument.list.resize(in.count(kItemsMax, "the length of a list"));
      for (auto& item : argument.list) item = in.u8() != 0;
      break;
    case Tag::kDoubleList:
      argument.count = in.bounded(kItemsMax, "the length of a list");
      break;
    case Tag::kString:
      argument.text = in.string();
      break;
    case Tag::kNone:
    case Tag::kDouble:
    case Tag::kScalarDouble:
    case Tag::kScalarInt:
    case Tag::kScalarBool:
    case Tag::kScalarComplex:
    case Tag::kGenerator:
      break;
  }
  return argument;
}

inline Output get_output(Reader& in, bool nested, size_t& items_left) {
  Output output;
  const uint8_t tag = in.u8();
  if (tag > static_cast<uint8_t>(OutputTag::kComplex)) throw WireError("an output of unknown kind " + std::to_string(tag));
  output.tag = static_cast<OutputTag>(tag);
  if (output.tag == OutputTag::kNew) {
    output.geometry = get_geometry(in);
    output.storage_bytes = static_cast<int64_t>(in.bounded(kStorageBytesMax, "the size of a storage"));
  } else if (output.tag == OutputTag::kSame) {
    output.same = in.bounded(kItemsMax, "the index of a tensor argument");
  } else if (output.tag == OutputTag::kList) {
    if (nested) throw WireError("a list within a list");
    output.items.resize(take_items(in, items_left));
    for (auto& item : output.items) item = get_output(in, true, items_left);
  }
  return output;
}

}  // namespace detail

inline Template get_template(Reader& in) {
  Template result;
  size_t items_left = kTemplateItemsMax;
  result.op = in.bounded(kOperatorsMax, "an operator's number");
  result.flags = in.u8();
  result.arguments.resize(in.count(kArgumentsMax, "the number of arguments"));
  for (auto& argument : result.arguments) argument = detail::get_argument(in, false, items_left);
  result.outputs.resize(in.count(kArgumentsMax, "the number of outputs"));
  for (auto& output : result.outputs) output = detail::get_output(in, false, items_left);
  return result;
}

namespace detail {

inline void put_argument(Writer& out, const Argument& argument) {
  out.tag(argument.tag);
  switch (argument.tag) {
    case Tag::kTensor:
      return put_geometry(out, argument.geometry.dtype, argument.geometry.flags, argument.geometry.sizes, argument.geometry.strides);
    case Tag::kScalarTensor:
      out.u8(argument.dtype);
      return out.u8(argument.flag);
    case Tag::kTensorList:
    case Tag::kScalarList:
      out.varint(argument.items.size());
      for (const auto& item : argument.items) put_argument(out, item);
      return;
    case Tag::kSparse:
      put_sparse_head(out, argument.layout, argument.flag, argument.list);
      for (const auto& part : argument.items) {
        put_geometry(out, part.geometry.dtype, part.geometry.flags, part.geometry.sizes, part.geometry.strides);
      }
      return;
    case Tag::kInt:
      return out.zigzag(argument.integer);
    case Tag::kBool:
    case Tag::kDevice:
      return out.u8(argument.flag);
    case Tag::kIntList:
      out.varint(argument.list.size());
      for (const int64_t item : argument.list) out.zigzag(item);
      return;
    case Tag::kBoolList:
      out.varint(argument.list.size());
      for (const int64_t item : argument.list) out.u8(item != 0);
      return;
    case Tag::kDoubleList:
      return out.varint(argument.count);
    case Tag::kString:
      return out.string(argument.text);
    default:
      return;
  }
}

inline void put_output(Writer& out, const Output& output) {
  out.tag(output.tag);
  if (output.tag == OutputTag::kNew) {
    put_geometry(out, output.geometry.dtype, output.geometry.flags, output.geometry.sizes, output.geometry.strides);
    out.varint(static_cast<uint64_t>(output.storage_bytes));
  } else if (output.tag == OutputTag::kSame) {
    out.varint(output.same);
  } else if (output.tag == OutputTag::kList) {
    out.varint(output.items.size());
    for (const auto& item : output.items) put_output(out, item);
  }
}

}  // namespace detail

// What get_template reads.
inline void put_template(Writer& out, const Template& source) {
  out.varint(source.op);
  out.u8(source.flags);
  out.varint(source.arguments.size());
  for (const auto& argument : source.arguments) detail::put_argument(out, argument);
  out.varint(source.outputs.size());
  for (const auto& output : source.outputs) detail::put_output(out, output);
}

}  // namespace forebay::wire
