#include "session/image.h"

#include <algorithm>
#include <unordered_map>

namespace forebay::worker {

namespace {

constexpr size_t kStoragesPerFrame = 4096;
constexpr size_t kSmallBytes = size_t{256} << 10;  // smaller storages are sent together
constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr size_t kVersionsBytesMax = size_t{1} << 30;
constexpr size_t kProductsBytesMax = size_t{1} << 30;
constexpr size_t kCausesBytesMax = size_t{1} << 30;  // more than a session can have failures (effects.cpp)

// Each failure once, numbered from 1.
class Causes {
 public:
  uint64_t number_of(const Cause& cause) {
    if (!cause) return 0;
    const auto [found, fresh] = numbers_.try_emplace(cause.get(), list_.size() + 1);
    if (fresh) list_.push_back(cause);
    return found->second;
  }
  const std::vector<Cause>& list() const { return list_; }

 private:
  std::unordered_map<const Failure*, uint64_t> numbers_;
  std::vector<Cause> list_;
};

// Sending.

}  // namespace

void send_bytes(const std::function<void(const Storages::TakeBytes&)>& hand_over, const SendImage& send) {
  const wire::Writer head = opcode(wire::Reply::kBytes);
  std::vector<uint8_t> together;
  const auto send_together = [&] {
    if (!together.empty()) send(head, together.data(), together.size());
    together.clear();
  };
  hand_over([&](const uint8_t* data, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
      const auto size = static_cast<size_t>(std::min<int64_t>(bytes - done, wire::kChunkBytesMax));
      const uint8_t* part = data + done;
      done += static_cast<int64_t>(size);
      if (together.size() + size <= kSmallBytes) {
        together.insert(together.end(), part, part + size);
        continue;
      }
      send_together();
      send(head, part, size);
    }
  });
  send_together();
}

void send_parts(wire::Reply reply, const uint8_t* data, size_t bytes, const SendImage& send) {
  for (size_t done = 0; done < bytes; done += wire::kChunkBytesMax) send(opcode(reply), data + done, std::min(wire::kChunkBytesMax, bytes - done));
}

void send_head(const Snapshot& snapshot, const Cause& unheard, const std::string& libraries, PackedVersions* versions, const SendImage& send) {
  const auto& items = snapshot.items;
  Causes causes;
  wire::ImageHead head;
  head.sequence = snapshot.sequence;
  head.failures = snapshot.failures;
  head.unheard = causes.number_of(unheard);
  head.storages = items.size();
  for (const auto& item : items) {
    causes.number_of(item.cause);
    if (item.has_bytes) head.bytes += item.bytes;
  }
  wire::Writer out;
  if (versions != nullptr) versions->put(out, [&causes](const Cause& cause) { return causes.number_of(cause); });
  head.causes = causes.list().size();
  send_parts(wire::Reply::kLibraries, reinterpret_cast<const uint8_t*>(libraries.data()), libraries.size(), send);
  send_parts(wire::Reply::kVersions, out.bytes().data(), out.size(), send);
  out.clear();
  wire::put_image_head(out, head);
  send(out, nullptr, 0);
  for (const auto& cause : causes.list()) {
    out.clear();
    wire::put_image_cause(out, {static_cast<uint8_t>(cause->code), cause->sequence, cause->op, cause->message, cause->inputs});
    send(out, nullptr, 0);
  }
  for (size_t first = 0; first < items.size(); first += kStoragesPerFrame) {
    out = opcode(wire::Reply::kStorages);
    const size_t count = std::min(kStoragesPerFrame, items.size() - first);
    out.varint(count);
    for (size_t index = first; index < first + count; ++index) {
      const auto& item = items[index];
      wire::put_image_storage(out, {item.id, item.bytes, causes.number_of(item.cause), item.has_bytes});
    }
    send(out, nullptr, 0);
  }
}

wire::Writer segment_states(const std::vector<wire::ImageSegment>& segments) {
  wire::Writer out;
  out.reply(wire::Reply::kSegmentStates);
  out.varint(segments.size());
  for (const auto& segment : segments) wire::put_image_segment(out, segment);
  return out;
}

// Receiving.

std::string ImageReceiver::refusal() {
  if (!effects_.goes_on()) return "a failure has stopped the session";
  return storages_.falls_short() ? "a failure kept a storage from growing" : gang_image_.refusal();
}

void ImageReceiver::take(wire::Reader& frame) {
  switch (static_cast<wire::Reply>(frame.u8())) {
    case wire::Reply::kLibraries: {
      const size_t bytes = frame.left();
      if (arrival_ || bytes > wire::kLibrariesBytesMax - libraries_.size()) throw wire::WireError("libraries behind an image, or too many");
      libraries_.append(reinterpret_cast<const char*>(frame.raw(bytes)), bytes);
      return;
    }
    case wire::Reply::kSegmentStates:
      if (arrival_ || !segments_.empty()) throw wire::WireError("states of segments behind an image");
      for (size_t left = frame.count(wire::kStepsMax, "the number of segments"); left > 0; --left) segments_.push_back(wire::get_image_segment(frame));
      if (!frame.done()) throw wire::WireError("something after states of segments");
      return;
    case wire::Reply::kVersions: {
      const size_t bytes = frame.left();
      if (arrival_ || bytes > kVersionsBytesMax - versions_.size()) throw wire::WireError("versions behind an image, or too many");
      const uint8_t* part = frame.raw(bytes);
      versions_.insert(versions_.end(), part, part + bytes);
      return;
    }
    case wire::Reply::kProducts: {
      const size_t bytes = frame.left();
      if (arrival_ || !is_restored_ || bytes > kProductsBytesMax - products_.size()) throw wire::WireError("what is made again, behind an image, of a session that left, or too much of it");
      const uint8_t* part = frame.raw(bytes);
      products_.insert(products_.end(), part, part + bytes);
      return;
    }
    case wire::Reply::kImage:
      if (arrival_) throw wire::WireError("a second image");
      arrival_ = std::make_unique<Arrival>();
      arrival_->head = wire::get_image_head(frame);
      if (!products_.empty()) get_products();
      storages_.check_room(arrival_->head.bytes);
      break;
    case wire::Reply::kCause: {
      if (!arrival_ || arrival_->causes.size() == arrival_->head.causes) throw wire::WireError("a cause that the image does not announce");
      const auto cause = wire::get_image_cause(frame);
      arrival_->cause_bytes += cause.op.size() + cause.message.size() + cause.inputs.size();
      if (arrival_->cause_bytes > kCausesBytesMax) throw wire::WireError("causes of more than " + std::to_string(kCausesBytesMax) + " bytes");
      arrival_->causes.push_back(
          std::make_shared<const Failure>(Failure{0, static_cast<wire::FailureCode>(cause.code), cause.sequence, cause.op, cause.message, cause.inputs}));
      break;
    }
    case wire::Reply::kStorages:
      if (!arrival_ || arrival_->causes.size() != arrival_->head.causes) throw wire::WireError("storages before the image");
      for (size_t left = frame.count(kStoragesPerFrame, "the number of storages"); left > 0; --left) {
        admit(wire::get_image_storage(frame, arrival_->head.causes));
      }
      break;
    case wire::Reply::kHoldings:
      return gang_image_.take_holdings(frame);
    case wire::Reply::kSummand:
      return gang_image_.take_summand(frame);
    case wire::Reply::kRefused:
      throw wire::WireError("the other worker refused: " + frame.string(wire::kMessageBytesMax));
    default:
      throw wire::WireError("what is not part of an image");
  }
  if (!frame.done()) throw wire::WireError("something after a part of an image");
  if (arrival_->is_announced()) make_places();
}

void ImageReceiver::admit(const wire::ImageStorage& announced) {
  if (arrival_->storages.size() == arrival_->head.storages) throw wire::WireError("more storages than the image announces");
  const bool bytes = announced.has_bytes && announced.bytes > 0;
  if (bytes && announced.bytes > arrival_->head.bytes - arrival_->bytes) throw wire::WireError("storages of more bytes than the image announces");
  if (bytes) arrival_->bytes += announced.bytes;
  const Cause cause = announced.cause == 0 ? nullptr : arrival_->causes[announced.cause - 1];
  if (cause && (announced.bytes > 0 || announced.has_bytes)) throw wire::WireError("a storage that was never made, with bytes");
  const Storages::Item item{announced.id, announced.bytes, cause, bytes};
  if (arrival_->let_go.contains(announced.id)) {
    if (bytes) throw wire::WireError("a storage that is let go, with bytes");
    storages_.count_absent(announced.bytes);
  }
  bytes && memory_ ? storages_.admit(item, memory_(item.bytes)) : storages_.admit(item, /*parked=*/is_off_device());
  arrival_->storages.push_back(announced);
}

void ImageReceiver::make_places() {
  auto& image = *arrival_;
  if (image.bytes != image.head.bytes) {
    throw wire::WireError("storages of " + std::to_string(image.bytes) + " bytes in an image of " + std::to_string(image.head.bytes));
  }
  for (const auto& storage : image.storages) {
    if (!memory_ && storage.has_bytes && storage.bytes > 0) image.places.push_back({storages_.at(storage.id).memory(), storage.bytes});
  }
  if (!versions_.empty()) get_versions();
  finish_if_whole();
}

void ImageReceiver::get_products() {
  const auto bytes = std::exchange(products_, {});
  wire::Reader in(bytes.data(), bytes.size());
  arrival_->let_go = recomputed_.arrive(in);
}

void ImageReceiver::get_versions() {
  auto& image = *arrival_;
  image.versions = checkpoints_.arriving();
  wire::Reader in(versions_.data(), versions_.size());
  const auto cause_of = [&](uint64_t number) {
    if (number > image.causes.size()) throw wire::WireError("a failure that the image does not have");
    return number == 0 ? Cause() : image.causes[number - 1];
  };
  image.versions->get(in, cause_of, is_off_device());
  for (const auto& place : image.versions->places()) image.places.push_back(place);
}

void ImageReceiver::finish_if_whole() {
  auto& image = *arrival_;
  if (image.next < image.places.size()) return;
  if (!device_.is_host()) device_.synchronize();
  image.staging = c10::Storage(nullptr);
  image.places.clear();  // the storages alone hold their memory
  image.next = 0;
  if (image.versions) std::exchange(image.versions, nullptr)->settle();
  versions_ = {};
  effects_.resume(image.head.sequence, image.head.failures, image.head.unheard == 0 ? nullptr : image.causes[image.head.unheard - 1]);
}

std::vector<int64_t> ImageReceiver::sizes() const {
  std::vector<int64_t> sizes;
  if (!arrival_) return sizes;
  for (const auto& storage : arrival_->storages) {
    if (storage.has_bytes && storage.bytes > 0) sizes.push_back(storage.bytes);
  }
  return sizes;
}

// What has no place is read over.
ImageReceiver::Room ImageReceiver::room() {
  if (!arrival_ || !arrival_->is_announced() || is_whole()) return {};
  auto& image = *arrival_;
  const auto& place = image.places[image.next];
  const int64_t left = place.bytes - image.filled;
  if (place.memory && !is_staged()) {  // it is kept beside the devices until it is restored
    auto* data = static_cast<uint8_t*>(place.memory.mutable_data());
    return {data + image.filled, static_cast<size_t>(left)};
  }
  if (!image.staging) image.staging = is_staged() ? device_.allocate_staging(kStagingBytes) : device_.allocate_parked(kStagingBytes);
  auto* data = static_cast<uint8_t*>(image.staging.mutable_data());
  return {data + image.staged, static_cast<size_t>(std::min(left, kStagingBytes - image.staged))};
}

void ImageReceiver::received(size_t count) {
  auto& image = *arrival_;
  const auto bytes = static_cast<int64_t>(count);
  const auto& place = image.places[image.next];
  if (place.memory && is_staged()) {
    device_.copy(place.memory, image.filled, image.staging, image.staged, bytes);
    image.staged += bytes;
    if (image.staged == kStagingBytes) {  // it is written again from its beginning
      device_.synchronize();
      image.staged = 0;
    }
  }
  image.filled += bytes;
  if (image.filled < place.bytes) return;
  image.filled = 0;
  ++image.next;
  finish_if_whole();
}

}  // namespace forebay::worker
