#include "base/failure.h"

#include <algorithm>
#include <new>

#include <c10/util/Exception.h>

namespace forebay::worker {

namespace {

// Some of PyTorch's texts show where an object of this process lies ("at 0x7f12ab34cd56").
void hide_addresses(std::string& text) {
  for (size_t at = text.find("0x"); at != std::string::npos; at = text.find("0x", at)) {
    const size_t end = std::min(text.find_first_not_of("0123456789abcdefABCDEF", at + 2), text.size());
    if (end == at + 2) {
      at = end;
      continue;
    }
    text.replace(at, end - at, "an address");
  }
}

constexpr int32_t kMemoryAllocation = 2;  // cudaErrorMemoryAllocation and hipErrorOutOfMemory

}  // namespace

std::string told_text(std::string text, size_t most) {
  if (text.size() > most) text.resize(most);
  hide_addresses(text);
  if (text.size() > most) text.resize(most);
  for (char& letter : text) {
    if (static_cast<uint8_t>(letter) >= 0x80) letter = '?';
  }
  return text;
}

bool is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    bool by_device = false;
    return command_error_of_current_exception(by_device).code == wire::FailureCode::kOutOfMemory;
  }
}

CommandError command_error_of_current_exception(bool& by_device) {
  using wire::FailureCode;
  by_device = false;
  try {
    throw;
  } catch (const CommandError& error) {
    return error;
  } catch (const c10::OutOfMemoryError& error) {
    return {FailureCode::kOutOfMemory, error.what_without_backtrace()};
  } catch (const c10::NotImplementedError& error) {
    return {FailureCode::kUnsupported, error.what_without_backtrace()};
  } catch (const c10::IndexError& error) {
    return {FailureCode::kIndex, error.what_without_backtrace()};
  } catch (const c10::ValueError& error) {
    return {FailureCode::kValue, error.what_without_backtrace()};
  } catch (const c10::TypeError& error) {
    return {FailureCode::kType, error.what_without_backtrace()};
  } catch (const c10::LinAlgError& error) {
    return {FailureCode::kLinalg, error.what_without_backtrace()};
  } catch (const c10::AcceleratorError& error) {
    by_device = true;
    return {error.get_error_code() == kMemoryAllocation ? FailureCode::kOutOfMemory : FailureCode::kOperator, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {FailureCode::kOperator, error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return {FailureCode::kOutOfMemory, "the worker's host has no memory left for this operation; free tensors or try again later"};
  } catch (const std::exception& error) {
    return {FailureCode::kOperator, error.what()};
  } catch (...) {
    return {FailureCode::kOperator, "an exception of unknown kind"};
  }
}

}  // namespace forebay::worker
