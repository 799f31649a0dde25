#include "call/kernel.h"

#include <stdexcept>

#include "base/failure.h"

namespace forebay::worker {

namespace {

constexpr size_t kPointerBytes = 8;

}  // namespace

std::vector<KernelParameter> kernel_parameters(const std::string& described) {
  if (described.size() > wire::kArgumentsMax) throw std::invalid_argument("a kernel of more than " + std::to_string(wire::kArgumentsMax) + " parameters");
  std::vector<KernelParameter> parameters;
  for (const char letter : described) {
    switch (letter) {
      case 'p':
        parameters.push_back({kPointerBytes, true});
        break;
      case '1':
      case '2':
      case '4':
      case '8':
        parameters.push_back({static_cast<size_t>(letter - '0'), false});
        break;
      default:
        throw std::invalid_argument("a kernel's parameter of unknown kind");
    }
  }
  return parameters;
}

std::vector<KernelArgument> get_kernel_arguments(wire::Reader& in) {
  std::vector<KernelArgument> arguments(in.count(wire::kArgumentsMax, "the number of a kernel's arguments"));
  for (auto& argument : arguments) {
    switch (in.u8()) {
      case 0:
        argument.bits = in.u64();
        break;
      case 1:
        argument.storage = in.varint();
        argument.bits = in.bounded(wire::kStorageBytesMax, "an offset");
        break;
      default:
        throw wire::WireError("an argument of a kernel of unknown kind");
    }
  }
  return arguments;
}

std::string packed(const Kernel& kernel, const std::vector<KernelArgument>& arguments, const std::vector<uint64_t>& values) {
  using wire::FailureCode;
  const auto& parameters = kernel.parameters;
  if (arguments.size() != parameters.size()) {
    throw CommandError(FailureCode::kType, "it takes " + std::to_string(parameters.size()) + " arguments, and was given " + std::to_string(arguments.size()));
  }
  std::string result;
  for (size_t index = 0; index < parameters.size(); ++index) {
    const auto& [bytes, is_pointer] = parameters[index];
    const bool is_number = !arguments[index].storage;
    if (is_number == is_pointer && !(is_number && values[index] == 0)) {  // 0 stands for no tensor
      throw CommandError(FailureCode::kType, "argument " + std::to_string(index) + " is " + (is_number ? "a number" : "a tensor") + ", and not what it takes there");
    }
    result.resize((result.size() + bytes - 1) / bytes * bytes);
    result.append(reinterpret_cast<const char*>(&values[index]), bytes);  // the lowest bytes come first
  }
  return result;
}

}  // namespace forebay::worker
