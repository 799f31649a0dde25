// Programs that go round in loops, as device/csrc/stream/repetition.h sees them: prints of each the period that is found, and where in a step a round begins.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "stream/repetition.h"

using forebay::Alive;
using forebay::Course;
using namespace forebay::wire;

namespace {

constexpr size_t kLongest = 32768;
bool for_libraries = false;
size_t waits_after = 0;  // steps; 0: never

// A segment's calls, and what they leave alive.
class Program {
 public:
  // Storages that were there before the segment.
  std::vector<uint64_t> make_before(size_t count, int64_t bytes) {
    std::vector<uint64_t> made;
    for (size_t index = 0; index < count; ++index) made.push_back(grow(bytes));
    base_ = next_;
    return made;
  }
  void begin_step() {
    begins_.push_back(course_.size());
  }
  // Where it waits after some steps, it is asked then whether they are rounds.
  bool end_step() {
    if (waits_after == 0) return course_.size() <= kLongest;
    if (begins_.size() < waits_after) return true;
    found_ = course_.rounds();
    return false;
  }
  // A call that reads some storages and makes one; 0 bytes: none.
  uint64_t call(uint64_t key, const std::vector<uint64_t>& reads, int64_t bytes) {
    Words words;
    std::vector<Word> kinds;
    for (const uint64_t storage : reads) {
      words.insert(words.end(), {storage, 0});
      kinds.insert(kinds.end(), {Word::kStorage, Word::kNumber});
    }
    if (bytes > 0) {
      words.push_back(next_);
      kinds.push_back(Word::kNew);
    }
    course_.note(call_key(key), words, kinds, base_, alive_);
    const auto sought = forebay::evidence_sought(course_.size(), for_libraries);
    if (waits_after == 0 && sought && !found_ && course_.size() <= kLongest) found_ = course_.repetition(course_.size() < kLongest, *sought);
    return bytes > 0 ? grow(bytes) : 0;
  }
  void free(int64_t bytes) {
    --alive_.storages;
    alive_.bytes -= bytes;
  }
  void tell(const char* name) const {
    if (!found_) return static_cast<void>(std::printf("%s 0 0\n", name));
    size_t offset = found_->boundary;
    for (const size_t begin : begins_) {
      if (begin <= found_->boundary) offset = found_->boundary - begin;
    }
    std::printf("%s %zu %zu\n", name, found_->period, offset);
  }

 private:
  uint64_t grow(int64_t bytes) {
    ++alive_.storages;
    alive_.bytes += bytes;
    return next_++;
  }

  Course course_;
  Alive alive_;
  uint64_t next_ = 1;
  uint64_t base_ = 1;
  std::vector<size_t> begins_;
  std::optional<forebay::Repetition> found_;
};

// Training of `layers` that each make `saved` storages; gradients are freed at the next step, or kept as zeros.
struct Network {
  size_t layers;
  size_t passes = 1;       // micro-batches
  bool shared = false;     // all layers have the same weight: time steps
  size_t batches = 1;      // that are there already
  bool keeps_loss = false;

  void train(const char* name) const {
    Program program;
    const auto weights = program.make_before(layers, 4096);
    const auto inputs = program.make_before(batches, 1024);
    size_t step = 0;
    do {
      if (step > 0) free_gradients(program);
      program.begin_step();
      std::vector<uint64_t> gradients(layers, 0);
      for (size_t pass = 0; pass < passes; ++pass) run_pass(program, weights, inputs[step % batches], gradients);
      for (size_t layer = 0; layer < (shared ? 1 : layers); ++layer) program.call(7, {weights[layer], gradients[layer]}, 0);
      if (keeps_loss) program.call(8, {inputs[step % batches]}, 4);
      ++step;
    } while (program.end_step());
    program.tell(name);
  }

 private:
  void free_gradients(Program& program) const {
    for (size_t layer = 0; layer < (shared ? 1 : layers); ++layer) program.free(4096);
  }
  void run_pass(Program& program, const std::vector<uint64_t>& weights, uint64_t input, std::vector<uint64_t>& gradients) const {
    std::vector<uint64_t> saved{input};
    for (size_t layer = 0; layer < layers; ++layer) {
      const uint64_t product = program.call(1, {saved.back(), weights[shared ? 0 : layer]}, 512);
      saved.push_back(program.call(2, {product}, 512));
      program.free(512);
    }
    uint64_t flow = program.call(3, {saved.back()}, 512);
    for (size_t layer = layers; layer-- > 0;) {
      uint64_t& gradient = gradients[shared ? 0 : layer];
      const uint64_t made = program.call(4, {flow, saved[layer]}, 4096);
      if (gradient == 0) {
        gradient = made;
      } else {
        program.call(6, {gradient, made}, 0);
        program.free(4096);
      }
      flow = program.call(5, {flow, weights[shared ? 0 : layer], saved[layer + 1]}, 512);
      program.free(512);
      program.free(512);
    }
    program.free(512);
  }
};

void infer(const char* name, size_t layers) {
  Program program;
  const auto weights = program.make_before(layers, 4096);
  const auto token = program.make_before(1, 8);
  do {
    program.begin_step();
    uint64_t hidden = program.call(1, {token[0]}, 512);
    for (const uint64_t weight : weights) {
      const uint64_t product = program.call(2, {hidden, weight}, 512);
      program.free(512);
      hidden = program.call(3, {product}, 512);
      program.free(512);
    }
    program.call(4, {token[0], hidden}, 0);
    program.free(512);
  } while (program.end_step());
  program.tell(name);
}

}  // namespace

// With an argument: as where libraries are asked for; with a number, of programs that wait after so many steps.
int main(int count, char** words) {
  for_libraries = count > 1;
  if (for_libraries) waits_after = static_cast<size_t>(std::atoi(words[1]));
  Network{3}.train("few-layers");
  Network{800}.train("layers");
  Network{60, 20}.train("micro-batches");
  Network{10, 20}.train("short-micro-batches");
  Network{900, 1, true}.train("time-steps");
  Network{60, 1, true}.train("few-time-steps");
  Network{20, 1, false, 400}.train("batches");
  Network{20, 1, false, 1, true}.train("losses");
  infer("inference", 1200);
  return 0;
}
