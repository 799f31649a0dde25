#include "proto_fields.h"

#include "objects.h"

namespace forebay::pjrt {
namespace {

enum class Kind : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  refuse_message();
}

std::string_view take(std::string_view& bytes, uint64_t count) {
  if (count > bytes.size()) refuse_message();
  const auto taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

}  // namespace

void refuse_message() { throw Refusal{Code::kInvalidArgument, "a message of protocol buffers cannot be read"}; }

void for_each_field(std::string_view message, const std::function<void(const Field&)>& read) {
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    Field field{key >> 3, 0, {}};
    switch (static_cast<Kind>(key & 7)) {
      case Kind::kVarint:
        field.value = take_varint(message);
        break;
      case Kind::kFixed64:
        take(message, 8);
        break;
      case Kind::kBytes:
        field.bytes = take(message, take_varint(message));
        break;
      case Kind::kFixed32:
        take(message, 4);
        break;
      default:
        refuse_message();
    }
    read(field);
  }
}

std::vector<uint64_t> numbers_of(const Field& field) {
  if (field.bytes.empty()) return {field.value};
  std::vector<uint64_t> numbers;
  for (auto packed = field.bytes; !packed.empty();) numbers.push_back(take_varint(packed));
  return numbers;
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_number(std::string& out, uint64_t field, uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}

void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_varint(out, field << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace forebay::pjrt
