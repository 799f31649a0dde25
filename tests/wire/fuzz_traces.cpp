// Two sides of forebay/traces.h over random programs that loop, stray and repeat: they must always agree, also where the worker is another one that was
// told the tree as bytes. Then hostile bytes as changes, and as a tree.
// Arguments: seconds, seed. The sanitizers end the program at the first bad access.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include <forebay/traces.h>
#include <forebay/traces_as_bytes.h>

using namespace forebay::wire;

namespace {

using Chance = std::mt19937_64;

// A call as a program makes it: what it reads are numbers of storages, made before or within this round.
struct Call {
  uint64_t key;
  std::vector<Word> kinds;
  Words words;
};

std::vector<Word> kinds_of(uint64_t key) {
  if (is_allocation(key)) return {Word::kNew};
  switch (key_value(key) % 4) {
    case 0:
      return {Word::kStorage, Word::kNumber, Word::kNew};
    case 1:
      return {Word::kStorage, Word::kNumber, Word::kStorage, Word::kNumber, Word::kBits};
    case 2:
      return {Word::kByte, Word::kNew, Word::kNew, Word::kBits, Word::kCounter};
    default:
      return {};
  }
}

struct Side {
  Traces traces;
  uint64_t unlike = 0;
};

void die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// What a client sends of a call, and what a worker makes of it.
void exchange(Side& client, Side& worker, const Call& call, const Words& freed) {
  Step* step = client.traces.find(call.key);
  if (step == nullptr) {
    Step* other = worker.traces.find(call.key);
    if (other != nullptr) die("the worker knows a step that the client does not");
    step = client.traces.add(call.key, call.kinds);
    other = worker.traces.add(call.key, call.kinds);
    if ((step == nullptr) != (other == nullptr)) die("one side is full, the other is not");
    if (step == nullptr) {
      client.traces.pass(call.kinds, call.words);
      worker.traces.pass(call.kinds, call.words);
      return;
    }
    client.traces.take(*step, call.words, freed);
    worker.traces.take(*other, call.words, freed);
    return;
  }
  std::vector<Change> changes, read;
  client.traces.compare(*step, call.words, changes);
  client.unlike += changes.size();
  Writer out;
  put_changes(out, changes);
  Reader in(out.bytes().data(), out.size());
  Step* other = worker.traces.child(client.traces.number_of(*step));
  if (other == nullptr || other->key != call.key) die("the sides number their steps otherwise");
  if ((step == client.traces.likely()) != (other == worker.traces.likely())) die("the sides expect other steps");
  get_changes(in, other->slots.size(), read);
  Words words, expected;
  worker.traces.expect(*other, read, words);
  if (words != call.words) die("the worker makes other words of a step");
  worker.traces.expect_freed(*other, 0, expected);
  if (client.traces.expects_freed(*step, freed) != (expected == freed)) die("the sides expect other frees");
  client.traces.take(*step, call.words, freed);
  worker.traces.take(*other, words, freed);
}

const std::vector<Word>* known_kinds(uint64_t key) {
  static std::vector<Word> kinds;
  kinds = kinds_of(key);
  return &kinds;
}

// Another worker takes the place of one that died between two segments.
std::unique_ptr<Side> successor(const Side& client) {
  Writer out;
  TracesAsBytes::put(out, client.traces);
  auto side = std::make_unique<Side>();
  Reader in(out.bytes().data(), out.size());
  TracesAsBytes::get(in, side->traces, known_kinds);
  if (!in.done()) die("a tree is read otherwise than it was written");
  return side;
}

void run(Chance& chance) {
  Side client;
  auto worker = std::make_unique<Side>();
  uint64_t next = 1, counter = 0;
  std::vector<uint64_t> program;
  for (size_t length = chance() % 40; length > 0; --length) program.push_back(chance() % 5 == 0 ? allocation_key(chance() % 64) : call_key(chance() % 12));
  std::vector<uint64_t> alive{1 << 20, 2 << 20};
  for (int round = 0; round < 12; ++round) {
    for (const uint64_t planned : program) {
      const uint64_t key = chance() % 50 == 0 ? call_key(chance() % 12) : planned;
      Call call{key, kinds_of(key), {}};
      Words freed;
      for (const Word kind : call.kinds) {
        if (chance() % 60 == 0) ++next;
        if (kind == Word::kNew) alive.push_back(next);
        call.words.push_back(kind == Word::kNew       ? next++
                             : kind == Word::kStorage ? alive[alive.size() - 1 - chance() % (chance() % 9 == 0 ? alive.size() : 1)]
                             : kind == Word::kCounter ? counter++
                             : kind == Word::kBits    ? bits_word(static_cast<double>(chance() % 3))
                                                      : chance() % 2);
      }
      if (alive.size() > 30) {
        freed.assign(alive.begin(), alive.begin() + 3);
        alive.erase(alive.begin(), alive.begin() + 3);
      }
      exchange(client, *worker, call, freed);
    }
    if (chance() % 20 == 0) {
      client.traces.clear();
      worker->traces.clear();
    }
    client.traces.cut();
    worker->traces.cut();
    if (chance() % 4 == 0) worker = successor(client);
  }
}

void read_hostile(Chance& chance) {
  std::vector<uint8_t> bytes(chance() % 64);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(chance() % 4 == 0 ? chance() : chance() % 8);
  std::vector<Change> changes;
  const size_t words = chance() % 20;
  try {
    Reader in(bytes.data(), bytes.size());
    get_changes(in, words, changes);
    for (size_t index = 0; index < changes.size(); ++index) {
      if (changes[index].index >= words || (index > 0 && changes[index].index <= changes[index - 1].index)) die("a change that a step cannot have");
    }
  } catch (const WireError&) {
  }
  try {
    Traces traces;
    Reader in(bytes.data(), bytes.size());
    TracesAsBytes::get(in, traces, known_kinds);
  } catch (const WireError&) {
  }
}

}  // namespace

int main(int, char** arguments) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * std::atof(arguments[1])));
  Chance chance(std::strtoull(arguments[2], nullptr, 10));
  uint64_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    run(chance);
    read_hostile(chance);
  }
  std::printf("%llu\n", static_cast<unsigned long long>(runs));
  return 0;
}
