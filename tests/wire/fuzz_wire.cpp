// Feeds random and damaged bytes to wire.h for as many seconds as the first argument says, from the seed that the second says.
// The sanitizers end the program at the first bad read; more than a bounded amount of memory at a time ends it too.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include <forebay/programs.h>
#include <forebay/wire.h>

using namespace forebay::wire;

namespace {

// The most memory that was resident at a time. Not getrusage's: that begins with what the program held that started this one.
long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stol(line.substr(6));
  std::abort();
}

// The bytes of a template with something of every kind.
std::vector<uint8_t> sample(std::mt19937_64& chance) {
  Writer out;
  const std::vector<int64_t> sizes{2, static_cast<int64_t>(chance() % 1000)};
  const std::vector<int64_t> strides{static_cast<int64_t>(chance() % 1000), 1};
  out.varint(chance() % 100);
  out.u8(static_cast<uint8_t>(chance() % 2));
  const size_t arguments = chance() % 20;
  out.varint(arguments);
  for (size_t index = 0; index < arguments; ++index) {
    const auto tag = static_cast<Tag>(chance() % 19);
    out.tag(tag);
    if (tag == Tag::kTensor) put_geometry(out, 6, 0, sizes, strides);
    if (tag == Tag::kScalarTensor) out.raw("\6\1", 2);
    if (tag == Tag::kInt) out.zigzag(static_cast<int64_t>(chance()));
    if (tag == Tag::kBool || tag == Tag::kDevice) out.u8(1);
    if (tag == Tag::kSparse) {
      put_sparse_head(out, 1, true, sizes);
      for (int part = 0; part < 2; ++part) put_geometry(out, 6, 0, sizes, strides);
    }
    if (tag == Tag::kDoubleList) out.varint(3);
    if (tag == Tag::kString) out.string("mean");
    if (tag == Tag::kTensorList || tag == Tag::kScalarList || tag == Tag::kIntList || tag == Tag::kBoolList) {
      out.varint(4);
      for (int item = 0; item < 4; ++item) out.u8(tag == Tag::kScalarList ? 8 : 0);
    }
  }
  out.varint(2);
  out.tag(OutputTag::kNew);
  put_geometry(out, 6, 0, sizes, strides);
  out.varint(8000);
  out.tag(OutputTag::kSame);
  out.varint(0);
  return out.bytes();
}

void damage(std::vector<uint8_t>& bytes, std::mt19937_64& chance) {
  for (size_t times = chance() % 6; times > 0 && !bytes.empty(); --times) {
    const size_t where = chance() % bytes.size();
    switch (chance() % 3) {
      case 0:
        bytes[where] = static_cast<uint8_t>(chance());
        break;
      case 1:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(where), 5, static_cast<uint8_t>(0xff));
        break;
      default:
        bytes.resize(where);
    }
  }
}

// Reads with every primitive in turn until the bytes end or are refused.
void read_all(const std::vector<uint8_t>& bytes, std::mt19937_64& chance) {
  Reader in(bytes.data(), bytes.size());
  while (!in.done()) {
    switch (chance() % 12) {
      case 0: in.u8(); break;
      case 1: in.varint(); break;
      case 2: in.zigzag(); break;
      case 3: in.f64(); break;
      case 4: in.u64(); break;
      case 5: in.string(); break;
      case 6: in.raw(in.bounded(kChunkBytesMax, "a chunk")); break;
      case 7: in.count(kStoragesMax, "a count"); break;
      case 8: span_of(get_geometry(in)); break;
      case 9: get_signature(in); break;
      case 10: get_placement(in); break;
      default: get_template(in);
    }
  }
}

}  // namespace

int main(int, char** arguments) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * std::atof(arguments[1])));
  std::mt19937_64 chance(std::strtoull(arguments[2], nullptr, 10));
  uint64_t read = 0, refused = 0;
  while (std::chrono::steady_clock::now() < end) {
    auto bytes = sample(chance);
    if (chance() % 4 == 0) {
      for (auto& byte : bytes) byte = static_cast<uint8_t>(chance());
    }
    damage(bytes, chance);
    try {
      Reader in(bytes.data(), bytes.size());
      for (const auto& argument : get_template(in).arguments) {
        if (argument.tag == Tag::kTensor) span_of(argument.geometry);
      }
      ++read;
    } catch (const WireError&) {
      ++refused;
    }
    try {
      read_all(bytes, chance);
    } catch (const WireError&) {
    }
    if (bytes.size() >= kFrameHeaderBytes) {
      try {
        get_frame_header(bytes.data());
      } catch (const WireError&) {
      }
    }
  }
  std::printf("%llu %llu %ld\n", static_cast<unsigned long long>(read), static_cast<unsigned long long>(refused), peak_kib());
  return 0;
}
