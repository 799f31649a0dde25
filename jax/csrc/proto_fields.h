// The wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace forebay::pjrt {

struct Field {
  uint64_t number;
  uint64_t value;          // of a varint
  std::string_view bytes;  // of a message, a string, or packed numbers
};

// These throw Refusal for bytes that are no message.
[[noreturn]] void refuse_message();
void for_each_field(std::string_view message, const std::function<void(const Field&)>& read);
// Numbers of a repeated field: packed, or one by itself.
std::vector<uint64_t> numbers_of(const Field& field);

void put_varint(std::string& out, uint64_t value);
void put_number(std::string& out, uint64_t field, uint64_t value);
void put_bytes(std::string& out, uint64_t field, std::string_view bytes);

}  // namespace forebay::pjrt
