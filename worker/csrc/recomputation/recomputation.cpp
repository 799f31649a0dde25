#include "recomputation/recomputation.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>
#include <string_view>
#include <unordered_set>

#include "base/clock.h"
#include "call/call_storages.h"

namespace forebay::worker {

namespace {

constexpr int64_t kBytesMin = 4096;  // of what may be let go
constexpr int kDepthMax = 512;       // a longer chain of calls begins anew from what it has made
constexpr size_t kWritesMax = 8;     // to one storage, after which it is not made again
constexpr int kVisitsMax = 512;      // of storages, to see how long one takes to make
constexpr uint64_t kLastCalls = 8;  // of the program, whose tensors go last: a gradient is soon used
constexpr int64_t kRetryPart = 8;    // of the limit, where an operator found no memory
constexpr int64_t kReducedPart = 4;  // of what a call was given: less than that is kept, as gradients of weights are
constexpr int64_t kRetainedPart = 4;  // of what was made of a storage, that it may have to stay for that

// In training these make their results of what they are given alone: the statistics that they keep are not read.
bool updates_statistics(const Plan& plan) {
  const auto name = base_name(plan);
  return name == "native_batch_norm" || name == "_native_batch_norm_legit" || name == "_batch_norm_with_update" || name == "cudnn_batch_norm" ||
         name == "miopen_batch_norm";
}

bool trains(const Plan& plan) {
  const auto& arguments = plan.op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].name() == "training") return plan.arguments[index].prototype.isBool() && plan.arguments[index].prototype.toBool();
  }
  return plan.op.schema().name() == "aten::_batch_norm_with_update";
}

// Whether the call makes the same again from the same inputs, and each result in a storage of its own.
bool is_recordable(const Plan& plan) { return !plan.tells && plan.sparse.empty() && !plan.keeps_places; }

int64_t wanted_after_failure(const Plan& plan, int64_t limit_bytes) { return std::max(plan.new_bytes, limit_bytes / kRetryPart); }

// With what it is made of that is not there either; infinity where that is too much to look at.
double seconds_to_make(const Product& product, int& visits) {
  if (--visits < 0) return std::numeric_limits<double>::infinity();
  double seconds = 0;
  for (const auto& call : product.origin) {
    seconds += call->seconds;
    for (const Product* input : call->inputs()) {
      if (input->absent) seconds += seconds_to_make(*input, visits);
    }
  }
  return seconds;
}

// Seconds a byte, by how long nothing has used it.
double price_of(const Product& product, uint64_t clock) {
  int visits = kVisitsMax;
  double seconds = seconds_to_make(product, visits);
  for (const User& user : product.users) {
    const auto& outputs = user.call->outputs;
    if (--visits > 0 && std::any_of(outputs.begin(), outputs.end(), [](const Product* output) { return output->absent; })) seconds += user.call->seconds;
  }
  return seconds / (static_cast<double>(product.entry.bytes()) * static_cast<double>(clock - product.last_used + 1));
}

int64_t bytes_made_of(const Product& product) {
  int64_t bytes = 0;
  for (const User& user : product.users) {
    for (const Product* output : user.call->outputs) bytes += output->entry.bytes();
  }
  return bytes;
}

}  // namespace

// Of its memory, for as long as it lives.
class Recomputation::Lock {
 public:
  explicit Lock(Product& product) : product_(&product) { ++product.locks; }
  ~Lock() {
    if (product_ != nullptr) --product_->locks;
  }
  Lock(Lock&& other) noexcept : product_(std::exchange(other.product_, nullptr)) {}
  Lock& operator=(Lock&&) = delete;

 private:
  Product* product_;
};

Recomputation::~Recomputation() {
  written_ = {};
  products_.clear();
}

void Recomputation::forget(Product& product) {
  if (is_repeating_) std::erase(remade_, &product);
  locked_.forget(product);
  origins_.forget(product);
  products_.forget(product);
}

void Recomputation::read(Product& product) {
  locked_.add(product, products_.clock);
  if (product.absent) recompute(product);
}

void Recomputation::write(Product& product) {
  read(product);
  settle_users(product);
  origins_.drop(product);
  product.is_zeros = false;
}

void Recomputation::end() {
  locked_.release_to(0);
  if (written_.product != nullptr) origins_.drop(std::exchange(written_, {}).origin, *written_.product);
  bury();
}

// Calls.

void Recomputation::begin(const Plan& plan, const wire::Words& words) {
  ++products_.calls;
  ++products_.clock;
  bury();
  std::vector<Product*> given;
  for (const uint64_t id : storages_of(plan, words)) {
    const Entry& entry = storages_.at(id);
    if (entry.watch() != nullptr) given.push_back(static_cast<Product*>(entry.watch()));
  }
  for (Product* product : given) {  // so that none goes for another one
    product->last_call = products_.calls;
    locked_.add(*product, products_.clock);
  }
  for (Product* product : given) {
    if (product->absent) recompute(*product);
  }
  prepare_write(plan, words);
  make_room({plan.new_bytes, &plan, &words});
}

void Recomputation::prepare_write(const Plan& plan, const wire::Words& words) {
  const auto ids = written_of(plan, words);
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (entry.watch() == nullptr) continue;
    auto& product = static_cast<Product&>(*entry.watch());
    settle_users(product);
    if (ids.size() == 1 && plan.new_storages == 0) {
      written_ = {&product, std::exchange(product.origin, {}), product.is_zeros};
    } else {
      origins_.drop(product);
    }
    product.is_zeros = false;
  }
}

void Recomputation::run(Caller& caller, const RecordedCall::Call& call) {
  while (true) {
    const auto since = Clock::now();
    try {
      caller.run(call.plan);
      return note(call, std::chrono::duration<double>(Clock::now() - since).count());
    } catch (const c10::OutOfMemoryError&) {
      const bool can_repeat = is_repeatable(call.plan, call.words) || caller.lacks_memory();
      const int64_t wanted = wanted_after_failure(call.plan, storages_.limit_bytes());
      if (!can_repeat || let_go([wanted](int64_t gone) { return gone >= wanted; }) == 0) throw;
    }
    caller.withdraw();
    caller.bind(call.plan, call.words);
  }
}

void Recomputation::note(const RecordedCall::Call& call, double seconds) {
  if (!is_recordable(call.plan)) return;
  const bool makes_all = call.plan.mutated.empty() || (updates_statistics(call.plan) && trains(call.plan));
  const double known = repeater_->seconds_of(call.plan, seconds);
  makes_all ? record_results(call, known) : record_write(call, known);
}

void Recomputation::use(uint64_t id, bool writes) {
  if (!is_on_) return;
  const Entry& entry = storages_.at(id);
  if (entry.watch() == nullptr) return;
  auto& product = static_cast<Product&>(*entry.watch());
  writes ? write(product) : read(product);
}

// What a call after it was to make, or to write to, is as before it.
void Recomputation::withdraw(uint64_t sequence, const std::vector<uint64_t>& never_made) {
  if (!is_on_) return;
  written_ = {};
  const auto is_later = [sequence](const auto& call) { return call->sequence >= sequence; };
  for (Product* product : std::vector<Product*>(products_.all())) {
    const auto first = std::find_if(product->origin.begin(), product->origin.end(), is_later);
    if (first == product->origin.end()) continue;
    if (!product->absent) {
      origins_.drop(*product);
      continue;
    }
    Lineage later(first, product->origin.end());
    product->origin.erase(first, product->origin.end());
    origins_.drop(std::move(later), *product);
    if (product->origin.empty()) come_back(*product);  // it holds nothing: zeros, or what is never made
  }
  for (const uint64_t id : never_made) {
    if (!storages_.has(id) || storages_.at(id).watch() == nullptr) continue;
    origins_.drop(static_cast<Product&>(*storages_.at(id).watch()));
  }
}

void Recomputation::begin_allocation(int64_t bytes) {
  bury();
  make_room({bytes, nullptr, nullptr});
}

void Recomputation::note_allocation(uint64_t id) { products_.of(id).is_zeros = true; }

std::vector<Input> Recomputation::inputs_of(const Plan& plan, const wire::Words& words, const Product* except) {
  const auto written = written_of(plan, words);
  std::vector<Input> inputs;
  for (const uint64_t id : storages_of(plan, words)) {
    Product& product = products_.of(id);
    if (&product != except) inputs.push_back({&product, std::find(written.begin(), written.end(), id) == written.end()});
  }
  return inputs;
}

void Recomputation::record_results(const RecordedCall::Call& call, double seconds) {
  const Plan& plan = call.plan;
  if (plan.new_bytes < std::max(kBytesMin, plan.given_bytes / kReducedPart)) return;
  const auto inputs = inputs_of(plan, call.words, nullptr);
  int depth = 0;
  for (const auto& input : inputs) depth = std::max(depth, input.product->depth + 1);
  if (depth > kDepthMax) return;
  const auto recorded = std::make_shared<RecordedCall>(call, seconds, inputs);
  for_each_storage(plan, call.words, wire::Word::kNew, [&](uint64_t id) {
    Product& product = products_.of(id);
    product.origin.push_back(recorded);
    product.depth = depth;
    recorded->outputs.push_back(&product);
  });
}

void Recomputation::record_write(const RecordedCall::Call& call, double seconds) {
  if (written_.product == nullptr) return;
  Written written = std::exchange(written_, {});
  Product& product = *written.product;
  const bool was_made = written.was_zeros || !written.origin.empty();
  const auto inputs = inputs_of(call.plan, call.words, &product);
  int depth = product.depth + 1;
  for (const auto& input : inputs) depth = std::max(depth, input.product->depth + 1);
  if (!was_made || product.entry.bytes() < kBytesMin || written.origin.size() >= kWritesMax || depth > kDepthMax) {
    product.depth = 0;
    return origins_.drop(std::move(written.origin), product);
  }
  const auto recorded = std::make_shared<RecordedCall>(call, seconds, inputs);
  recorded->outputs.push_back(&product);
  product.origin = std::move(written.origin);
  product.origin.push_back(recorded);
  product.depth = depth;
}

// Letting go.

// What was made last goes only for what is needed in any case: it would soon be made again.
void Recomputation::make_room(const Need& need) {
  const auto make = [&](Room room, int64_t least_bytes) {
    const int64_t lacking = repeater_->lacking(need, room);
    if (lacking <= 0) return;
    const int64_t wanted = std::max(lacking, least_bytes);
    let_go([&](int64_t) { return lacking - repeater_->lacking(need, room) >= wanted; }, 0, /*of_last_calls=*/room == Room::kLeast);
  };
  make(Room::kUsual, repeater_->least_bytes());
  make(Room::kLeast, 0);
}

// What one costs rises as what it is made of goes: the cheapest is looked at again before it goes.
int64_t Recomputation::let_go(const IsEnough& is_enough) {
  const int64_t gone = let_go(is_enough, 0, /*of_last_calls=*/false);
  return is_enough(gone) ? gone : let_go(is_enough, gone, /*of_last_calls=*/true);
}

int64_t Recomputation::let_go(const IsEnough& is_enough, int64_t gone, bool of_last_calls) {
  struct Offer {
    double price;
    Product* product;
    bool operator>(const Offer& other) const { return std::pair(price, product->id) > std::pair(other.price, other.product->id); }
  };
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  for (Product* product : products_.all()) {
    if (product->origin.empty() || product->absent || product->locks > 0 || !repeater_->gives_room(product->entry) || product->entry.bytes() < kBytesMin) continue;
    if (!of_last_calls && !product->freed && products_.calls - product->last_call < kLastCalls) continue;
    const double price = price_of(*product, products_.clock);
    if (price < std::numeric_limits<double>::infinity()) offers.push({price, product});
  }
  while (!is_enough(gone) && !offers.empty()) {
    Product& product = *offers.top().product;
    offers.pop();
    const double price = price_of(product, products_.clock);
    if (price == std::numeric_limits<double>::infinity()) continue;
    if (!offers.empty() && price > offers.top().price) {
      offers.push({price, &product});
      continue;
    }
    gone += product.entry.bytes();
    let_go(product);
  }
  return gone;
}

void Recomputation::let_go(Product& product) {
  product.entry.replace(c10::Storage(nullptr));
  product.absent = true;
  storages_.count_absent(product.entry.bytes());
}

void Recomputation::come_back(Product& product) {
  product.absent = false;
  if (is_repeating_) remade_.push_back(&product);
  storages_.count_absent(-product.entry.bytes());
}

// Making again.

void Recomputation::recompute(Product& product) {
  if (is_repeating_) return remake(product);
  repeater_->begin();
  is_repeating_ = true;
  try {
    remake(product);
    repeater_->end();
  } catch (...) {
    repeater_->give_up();
    for (Product* made : remade_) {
      if (!made->absent) let_go(*made);
    }
    remade_.clear();
    is_repeating_ = false;
    throw;
  }
  remade_.clear();
  is_repeating_ = false;
}

void Recomputation::remake(Product& product) {
  const Lineage origin = product.origin;
  TORCH_INTERNAL_ASSERT(!origin.empty(), "a storage was let go that cannot be made again");
  const Lock lock(product);
  auto watch = product.entry.watch_by(nullptr);  // nobody asks it while it is being made
  try {
    if (origin.front()->plan.new_storages == 0) {  // it was allocated, and written to
      make_room({product.entry.bytes(), nullptr, nullptr});
      come_back(product);
    }
    for (const auto& call : origin) {
      repeat(*call, product);
      if (product.absent) come_back(product);
    }
  } catch (...) {
    product.absent ? product.entry.replace(c10::Storage(nullptr)) : let_go(product);
    product.entry.watch_by(std::move(watch));
    throw;
  }
  product.entry.watch_by(std::move(watch));
}

void Recomputation::repeat(RecordedCall& call, Product& product) {
  const auto inputs = call.inputs();
  std::vector<Lock> locks;
  for (Product* input : inputs) {
    if (!input->absent) locks.emplace_back(*input);
  }
  for (Product* input : inputs) {  // what is made on the way to another may go once more, or all of a long way would have to fit
    if (!input->absent) continue;
    remake(*input);
    locks.emplace_back(*input);
  }
  make_room({call.plan.new_bytes, &call.plan, &call.words});
  while (true) {
    try {
      return rerun(call, product);
    } catch (const wire::WireError&) {
      throw;
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
      const bool can_repeat = is_repeatable(call.plan, call.words) || repeater_->has_not_begun();
      const int64_t wanted = wanted_after_failure(call.plan, storages_.limit_bytes());
      if (!can_repeat || let_go([wanted](int64_t gone) { return gone >= wanted; }) == 0) throw;
    }
  }
}

void Recomputation::rerun(RecordedCall& call, Product& product) {
  ++products_.clock;
  const size_t locked = locked_.size();
  std::vector<uint64_t> results{product.id};
  std::vector<std::pair<Product*, std::unique_ptr<StorageWatch>>> others;  // that the call makes, too
  for (Product* output : call.outputs) {
    if (output == &product || !output->absent || output->freed || output->origin.size() != 1) continue;
    results.push_back(output->id);
    others.emplace_back(output, output->entry.watch_by(nullptr));
  }
  const auto put_back = [&] {
    for (auto& [other, watch] : others) other->entry.watch_by(std::move(watch));
    locked_.release_to(locked);
  };
  try {
    repeater_->repeat(call, results);
  } catch (...) {
    for (auto& [other, watch] : others) other->entry.replace(c10::Storage(nullptr));
    put_back();
    throw;
  }
  put_back();
  for (const auto& [other, watch] : others) come_back(*other);
}

void Recomputation::settle_users(Product& product) {
  const auto next = [&] { return std::find_if(product.users.begin(), product.users.end(), [](const User& user) { return user.reads; }); };
  for (auto user = next(); user != product.users.end(); user = next()) {
    const auto outputs = user->call->outputs;
    Lineage held = outputs.front()->origin;  // or the call would go while its outputs are looked at
    for (Product* output : outputs) {
      std::optional<Lock> lock;  // what is not there may come and go on the way to another
      if (!output->absent) lock.emplace(*output);
      if (output->absent && output->freed) {
        settle_users(*output);
      } else if (output->absent) {
        recompute(*output);
      }
      origins_.drop(*output);
    }
    origins_.release(std::move(held));
  }
}

bool Recomputation::comes_back(Product& product) {
  try {
    if (product.absent) recompute(product);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  } catch (const CommandError&) {
    return false;
  }
}

std::vector<uint64_t> Recomputation::settle(bool may_compute) {
  std::vector<uint64_t> lost;
  for (Product* product : products_.lacking()) {
    if (may_compute && comes_back(*product)) {
      origins_.drop(*product);
    } else if (product->absent) {
      lost.push_back(product->id);
    }
  }
  for (const uint64_t id : lost) come_back(products_.of(id));
  for (Product* product : products_.all()) origins_.drop(*product);
  bury();
  return lost;
}

void Recomputation::restore() {
  const auto all = products_.lacking();
  std::all_of(all.begin(), all.end(), [this](Product* product) { return comes_back(*product); });
}

// Ends.

bool Recomputation::keeps_freed(Product& product) {
  if (&product == buried_) return false;
  if (product.freed) return true;
  if (product.users.empty()) {
    origins_.drop(product);
    if (product.absent) come_back(product);
    return false;
  }
  product.freed = true;
  if (product.absent) return true;
  if (!product.origin.empty()) {
    let_go(product);
  } else if (product.entry.bytes() > bytes_made_of(product) / kRetainedPart) {
    origins_.give_up(product);
  }
  return true;
}

void Recomputation::bury() {
  while (Product* const orphan = origins_.take_orphan()) {
    Product& product = *orphan;
    if (!product.users.empty()) continue;
    origins_.drop(product);
    if (product.absent) come_back(product);
    buried_ = &product;
    storages_.free(product.id);
    buried_ = nullptr;
  }
}

}  // namespace forebay::worker
