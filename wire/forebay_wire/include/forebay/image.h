// What a session is on its way from one worker to another (docs/wire.md, Moving): the frames that answer a FETCH.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <forebay/wire.h>

namespace forebay::wire {

// The number of the image with which a copy of another session begins.
constexpr uint64_t kSharedImage = uint64_t{1} << 62;

// What a worker has of the session before its client comes.
enum class Begun : uint8_t {
  kNothing,  // it is fresh
  kMoved,    // all that the worker had which the session left
  kImage,    // an image of that: the same, but for versions for forks
};
constexpr size_t kImagesToldMax = 64;

// What WELCOME says of images.
struct SessionImages {
  Begun begun = Begun::kNothing;
  std::vector<uint64_t> there;  // the numbers of those that are there whole
};

inline void put_session_images(Writer& out, const SessionImages& images) {
  const size_t count = std::min(images.there.size(), kImagesToldMax);
  out.u8(static_cast<uint8_t>(images.begun));
  out.varint(count);
  for (size_t index = 0; index < count; ++index) out.varint(images.there[index]);
}

inline SessionImages get_session_images(Reader& in) {
  SessionImages images;
  const uint8_t begun = in.u8();
  if (begun > static_cast<uint8_t>(Begun::kImage)) throw WireError("an unknown beginning of a session");
  images.begun = static_cast<Begun>(begun);
  images.there.resize(in.count(kImagesToldMax, "the number of images"));
  for (auto& number : images.there) number = in.varint();
  return images;
}

// What there is between commands, but for the bytes of storages.
struct ImageHead {
  uint64_t sequence = 0;  // of the next CALL or ASK
  uint64_t failures = 0;  // so far; the number of the last one
  uint64_t causes = 0;
  uint64_t unheard = 0;   // the cause that the client has not said it heard of, from 1; 0: none
  uint64_t storages = 0;
  int64_t bytes = 0;      // that follow
};

struct ImageCause {
  uint8_t code = 0;
  uint64_t sequence = 0;
  std::string op;
  std::string message;
  std::string inputs;
};

struct ImageStorage {
  uint64_t id = 0;
  int64_t bytes = 0;
  uint64_t cause = 0;      // why it was never made, from 1; 0: none
  bool has_bytes = false;  // its bytes follow; else it reads as zeros
};

// By what a segment that repeats is carried out when it comes next.
enum class SegmentCourse : uint8_t {
  kUndescribed = 0,  // by tier 1, while it is found whether there is a library
  kTier1 = 1,
  kVerified = 2,     // by tier 1, and its library is compared with that
  kLibrary = 3,
  kPipelineVerified = 4,  // as kVerified, of the pipeline in which several devices carry it out
  kPipeline = 5,
};

struct ImageSegment {
  uint64_t end = 0;    // the number of its last step, in the order of TRACES, from 0
  SegmentCourse course = SegmentCourse::kTier1;
  uint64_t left = 0;   // kVerified, kPipelineVerified: how many times more it is compared
  std::string library; // its name; empty: none
  std::vector<uint64_t> pipeline{};  // of kPipelineVerified and kPipeline alone: the numbers that its executor has it by
};

constexpr uint64_t kPipelineNumbersMax = 8 * kStoragesMax;
inline bool is_of_pipeline(SegmentCourse course) { return course >= SegmentCourse::kPipelineVerified; }

inline void put_image_segment(Writer& out, const ImageSegment& segment) {
  out.varint(segment.end);
  out.u8(static_cast<uint8_t>(segment.course));
  out.varint(segment.left);
  out.string(segment.library);
  if (!is_of_pipeline(segment.course)) return;
  out.varint(segment.pipeline.size());
  for (const uint64_t number : segment.pipeline) out.varint(number);
}

inline ImageSegment get_image_segment(Reader& in) {
  ImageSegment segment;
  segment.end = in.bounded(kStepsMax, "the number of a step");
  const uint8_t course = in.u8();
  if (course > static_cast<uint8_t>(SegmentCourse::kPipeline)) throw WireError("a segment that is carried out by nothing known");
  segment.course = static_cast<SegmentCourse>(course);
  segment.left = in.varint();
  segment.library = in.string();
  if (!is_of_pipeline(segment.course)) return segment;
  segment.pipeline.resize(in.count(kPipelineNumbersMax, "the numbers of a pipeline"));
  for (uint64_t& number : segment.pipeline) number = in.varint();
  return segment;
}

inline void put_image_head(Writer& out, const ImageHead& head) {
  out.reply(Reply::kImage);
  out.varint(head.sequence);
  out.varint(head.failures);
  out.varint(head.causes);
  out.varint(head.unheard);
  out.varint(head.storages);
  out.varint(static_cast<uint64_t>(head.bytes));
}

inline ImageHead get_image_head(Reader& in) {
  ImageHead head;
  head.sequence = in.varint();
  head.failures = in.varint();
  head.causes = in.bounded(kStoragesMax + 1, "the number of causes");
  head.unheard = in.bounded(head.causes, "the number of a cause");
  head.storages = in.bounded(kStoragesMax, "the number of storages");
  head.bytes = static_cast<int64_t>(in.bounded(kStorageBytesMax, "the size of an image"));
  return head;
}

inline void put_image_cause(Writer& out, const ImageCause& cause) {
  out.reply(Reply::kCause);
  out.u8(cause.code);
  out.u64(cause.sequence);
  out.string(cause.op);
  out.string(cause.message);
  out.string(cause.inputs);
}

inline ImageCause get_image_cause(Reader& in) {
  ImageCause cause;
  cause.code = in.u8();
  if (cause.code < static_cast<uint8_t>(FailureCode::kOperator) || cause.code > static_cast<uint8_t>(FailureCode::kLinalg)) {
    throw WireError("a failure of unknown code " + std::to_string(cause.code));
  }
  cause.sequence = in.u64();
  cause.op = in.string();
  cause.message = in.string(kMessageBytesMax);
  cause.inputs = in.string(kMessageBytesMax);
  return cause;
}

inline void put_image_storage(Writer& out, const ImageStorage& storage) {
  out.varint(storage.id);
  out.varint(static_cast<uint64_t>(storage.bytes));
  out.varint(storage.cause);
  out.u8(storage.has_bytes);
}

inline ImageStorage get_image_storage(Reader& in, uint64_t causes) {
  ImageStorage storage;
  storage.id = in.varint();
  storage.bytes = static_cast<int64_t>(in.bounded(kStorageBytesMax, "the size of a storage"));
  storage.cause = in.bounded(causes, "the number of a cause");
  storage.has_bytes = in.u8() != 0;
  return storage;
}

}  // namespace forebay::wire
