#include "parallel/data_parallel.h"

#include <algorithm>
#include <map>

#include "call/call_storages.h"
#include "parallel/composed_call.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

bool fails_by_value(const Plan& plan) { return !plan.bounds.empty() || plan.partial_writes != PartialWrites::kNone; }

bool may_fail(const Plan& plan) { return plan.new_bytes > 0 || fails_by_value(plan); }

// What a device makes of a call's new storages.
int64_t made_bytes(Gang& gang, const Way& way, const Plan& plan) {
  return way.starts.empty() || way.composition ? plan.new_bytes : gang.templates().own_plan(way.definition).new_bytes;
}

using Memory = std::map<uint64_t, c10::Storage>;

// As long as it lives, storages have other memory than their own.
class Loan {
 public:
  Loan(Storages& storages, const Memory& memory) : storages_(storages), memory_(memory) { exchange(); }
  ~Loan() { exchange(); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  void exchange() {
    for (auto& [id, storage] : memory_) storages_.at(id).exchange(storage);
  }
  Storages& storages_;
  Memory memory_;
};

}  // namespace

// Batches.

std::unique_ptr<Slices::Taken> DataParallel::look(uint64_t number, const Plan& plan, const wire::Words& given) {
  if (rows_for_room_.rest(number, plan, given)) on_ = has_room_ = true;
  if (!has_room_) return nullptr;
  auto slices = slices_.take(number, plan, given);
  const wire::Words& words = slices ? slices->words : given;
  on_ = batches_.find(number, plan, words) || on_ || step_.is_given_large(plan, words);
  step_.note(number, plan, words);
  return slices;
}

void DataParallel::place_batches(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    const int64_t period = batches_.take(id);
    if (period == 0) continue;
    if (storages_.at(id).share() == nullptr) {
      owners_.make_room_at(0, 2 * storages_.at(id).bytes(), ids);
      shares_.gather(id);
    }
    shares_.cut(id, period);
  }
}

bool DataParallel::is_in_rows(uint64_t id) const {
  const Entry& entry = storages_.at(id);
  if (step_.period_of(id) != 0) return true;
  if (entry.share() != nullptr) return entry.share()->placement.sharing == Sharing::kRows;
  return batches_.has(id) || (entry.on_host() != nullptr && entry.on_host()->period() != 0);
}

// No call writes to what is not made yet, so it may be made at any time: gradients that an optimizer takes one by one come together.
void DataParallel::merge(std::vector<uint64_t> ids) {
  if (ids.empty()) return;
  const std::unordered_set<uint64_t> asked(ids.begin(), ids.end());
  for (const auto& item : storages_.items()) {
    if (item.bytes < kSmallSumBytes && asked.count(item.id) == 0 && storages_.at(item.id).is_partial()) ids.push_back(item.id);
  }
  shares_.merge(ids);
}

// Ways.

Held DataParallel::held(uint64_t id) const {
  const Entry& entry = storages_.at(id);
  if (entry.share() == nullptr) return {std::nullopt, entry.bytes(), entry.is_untouched(), false};
  return {entry.share()->placement, entry.bytes(), false, step_.period_of(id) != 0};
}

DataParallel::Given DataParallel::note_use(const Plan& plan, const wire::Words& words) {
  Given given;
  given_.clear();
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    const Entry& entry = storages_.at(id);
    Share* share = entry.share();
    if (share != nullptr) given_.push_back(share);
    if (entry.is_untouched()) given.untouched_bytes += entry.bytes();
    given.fits = given.fits && (share == nullptr ? entry.is_untouched() : share->placement.sharing == Sharing::kCopies || share->placement.sharing == Sharing::kRows);
    given.has_rows = given.has_rows || (share != nullptr && share->placement.sharing == Sharing::kRows);
  });
  for (Share* share : given_) {
    share->used = calls_;
    share->is_lent = share->is_lent || given.has_rows;
  }
  return given;
}

std::vector<Owners::Part> DataParallel::owned_parts(uint64_t number, Plan& plan, const wire::Words& words) {
  bool in_rows = false;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) { in_rows = in_rows || is_in_rows(id); });
  return in_rows ? std::vector<Owners::Part>() : owners_.parts_of(number, plan, words);
}

std::vector<GangTemplates::Part> DataParallel::parts_by_placement(uint64_t number, const Plan& plan, const wire::Words& words) {
  auto& templates = gang_.templates();
  if (templates.length_of_items(number) < 2) return {};
  std::vector<size_t> in_rows, others;
  const auto items = templates.items_of(number, words);
  int64_t kept_bytes = 0;  // by one device, of the others
  for (size_t item = 0; item < items.size(); ++item) {
    const bool has_rows = std::any_of(items[item].begin(), items[item].end(), [&](uint64_t id) { return is_in_rows(id); });
    (has_rows ? in_rows : others).push_back(item);
    for (const uint64_t id : items[item]) {
      const Entry& entry = storages_.at(id);
      if (!has_rows && entry.share() == nullptr && entry.holds_anything()) kept_bytes += entry.bytes();
    }
  }
  if (in_rows.empty() || kept_bytes < Owners::kOwnedBytes || !owners_.is_owned_together(number, plan, words)) return {};
  return {templates.part_of_items(number, words, in_rows), templates.part_of_items(number, words, others)};
}

Way* DataParallel::known(uint64_t number, Plan& plan, const wire::Words& words) {
  ++calls_;
  turned_back_.clear();
  if (batches_.has_any(plan, words) || step_.is_given_large(plan, words) || !rows_.missing(plan, words).empty()) return nullptr;
  const Given given = note_use(plan, words);
  if (!given.has_rows && (!given.fits || gang_.templates().length_of_items(number) > 1)) {
    parts_ = owned_parts(number, plan, words);
    if (!parts_.empty()) return owners_.are_ready(parts_) ? &owned_ : nullptr;
  }
  if (!given.fits) return nullptr;
  if (!given.has_rows) return owners_.have_room(plan.new_bytes + given.untouched_bytes) ? &copies_ : nullptr;
  Way* way = ways_.known({number, &plan, words}, holding_);
  if (way == nullptr || !way->is_divided() || !serves(*way, plan, words) || !owners_.have_room(made_bytes(gang_, *way, plan))) return nullptr;
  return to_be_cut(*way, plan, words).empty() ? way : nullptr;
}

void DataParallel::make_room_for_whole(const Plan& plan, const std::vector<uint64_t>& ids) {
  int64_t bytes = plan.new_bytes;
  for (const uint64_t id : ids) {
    const Share* share = storages_.at(id).share();
    if (!plan.mutated.empty() || (share != nullptr && share->placement.sharing == Sharing::kRows)) bytes += storages_.at(id).bytes();
  }
  owners_.make_room_at(0, bytes, ids);
}

bool DataParallel::has_room_for(const Plan& plan, const std::vector<uint64_t>& ids) {
  const bool in_rows = std::any_of(ids.begin(), ids.end(), [&](uint64_t id) { return is_in_rows(id); });
  int64_t bytes = in_rows ? plan.new_bytes / devices() : plan.new_bytes;
  std::vector<int64_t> there(gang_.size(), 0);
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (entry.share() != nullptr) continue;
    if (in_rows && entry.is_untouched() && !owners_.may_have_room(entry.bytes())) return true;  // it comes to be in rows, or the call fails
    bytes += entry.bytes();
    if (entry.holds_anything() && entry.home() != kOnHost) there[static_cast<size_t>(entry.home())] += entry.bytes();
  }
  return owners_.make_room(bytes, ids, gang_.memory().scratch_of(ids, plan.new_bytes), there);
}

Way& DataParallel::prepared(uint64_t number, Plan& plan, const wire::Words& words) {
  const auto ids = storages_of(plan, words);
  whole_.alone = wire::Alone::kNoRule;
  place_batches(ids);
  rows_.return_from_host(ids);
  step_.divide_large({number, &plan, words}, holding_);
  parts_ = owned_parts(number, plan, words);
  if (!parts_.empty()) {
    owners_.prepare(parts_);
    return owned_;
  }
  rows_.place(plan, words);
  if (gang_.templates().length_of_items(number) > 1) rows_.place_items(gang_.templates().items_of(number, words), ids);
  has_room_ = has_room_for(plan, ids) || (rows_for_room_.divide_ahead(number, plan, words) && has_room_for(plan, ids));
  if (!has_room_) {
    leave();
    return whole_;
  }
  owners_.copy(ids);
  std::vector<uint64_t> partial;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(partial), [&](uint64_t id) { return storages_.at(id).is_partial(); });
  merge(std::move(partial));
  Way& way = way_with_copies(number, plan, words, ids);
  for (const auto& [id, period] : to_be_cut(way, plan, words)) shares_.cut(id, period);
  return way;
}

Way& DataParallel::way_with_copies(uint64_t number, const Plan& plan, const wire::Words& words, const std::vector<uint64_t>& ids) {
  for (;;) {
    if (!note_use(plan, words).has_rows) return copies_;
    if (!plan.mutated.empty() && fails_by_value(plan) && !plan.random) return whole_;  // or some devices would write their rows, and others not
    Way& way = ways_.of({number, &plan, words}, holding_);
    if (rows_.copy_for(way, plan, words)) continue;
    if (rows_.turn_for(way, plan, words)) {
      turned_back_ = way.turned_back;
      continue;
    }
    if (way.composition) owners_.make_room(way.composition->bytes(devices()), ids);
    if (way.is_divided() && serves(way, plan, words)) return way;
    make_room_for_whole(plan, ids);
    turned_back_.clear();
    whole_.alone = way.whole ? way.alone : way.composition || !way.is_divided() ? wire::Alone::kNoRoom : wire::Alone::kViews;
    return whole_;
  }
}

bool DataParallel::serves(const Way& way, const Plan& plan, const wire::Words& words) const {
  bool fits = local_words(way, plan, words, 0, devices()).has_value() && (!way.zero_word || wire::bits_value(words[*way.zero_word]) == 0);
  size_t tensor = 0;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    const int64_t period = way.fresh.empty() ? 0 : way.fresh[tensor];
    ++tensor;
    fits = fits && (period == 0 || storages_.at(id).bytes() % period == 0);
  });
  if (!fits || !way.composition) return fits;
  const auto& composition = *way.composition;
  if (composition.fits && !composition.fits(words)) return false;
  return gang_.memory().all_have_room(composition.bytes(devices())) && storages_.size() + composition.made.size() <= wire::kStoragesMax;
}

std::map<uint64_t, int64_t> DataParallel::to_be_cut(const Way& way, const Plan& plan, const wire::Words& words) {
  std::map<uint64_t, int64_t> periods;
  auto period = way.fresh.begin();
  if (period == way.fresh.end()) return periods;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    const Share* share = storages_.at(id).share();
    if (*period != 0 && share != nullptr && share->placement.sharing == Sharing::kCopies) periods.emplace(id, *period);
    ++period;
  });
  return periods;
}

void DataParallel::place_untouched(const Way& way, const Plan& plan, const wire::Words& words) {
  size_t tensor = 0;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    const int64_t period = way.fresh.empty() ? 0 : way.fresh[tensor];
    ++tensor;
    if (storages_.at(id).is_untouched()) shares_.begin(id, {period == 0 ? Sharing::kCopies : Sharing::kRows, period, 0});
  });
}

void DataParallel::carry_out(Way& way, uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence) {
  if (way.whole) return run_whole(plan, words);
  if (way.by_owners) {
    for (const auto& part : parts_) may_fail_ = may_fail_ || (part.place != 0 && may_fail(*part.call.plan));
    return owners_.carry_out(parts_, sequence, settle_);
  }
  if (way.composition) return run_composed(way, plan, words, sequence);
  run_divided(way, number, plan, words, sequence);
  if (!turned_back_.empty() && settle_()) rows_.turn_back(turned_back_, plan, words);
}

void DataParallel::run_composed(const Way& way, const Plan& plan, const wire::Words& words, uint64_t sequence) {
  place_untouched(way, plan, words);
  std::vector<wire::Words> local;
  for (int place = 0; place < devices(); ++place) local.push_back(local_words(way, plan, words, place, devices()).value());
  std::vector<uint64_t> results;
  for_each_made(plan, words, [&](size_t, uint64_t id) { results.push_back(id); });
  ComposedCall call(gang_, storages_, caller_, *way.composition, std::move(local), results);
  may_fail_ = true;
  call.carry_out(shares_, plan, sequence, settle_);
}

void DataParallel::run_divided(const Way& way, uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence) {
  place_untouched(way, plan, words);
  const uint64_t definition = way.starts.empty() ? number : way.definition;
  Plan& local = way.starts.empty() ? plan : gang_.templates().own_plan(definition);
  std::vector<wire::Words> parts;
  for (int place = 0; place < devices(); ++place) parts.push_back(*local_words(way, plan, words, place, devices()));
  const auto send = [&](int place) {
    gang_.send(place, definition, local, parts[static_cast<size_t>(place)], sequence);
    gang_.rank(place).flush();
  };
  const auto run = [&] {
    caller_.bind(local, parts.front());
    caller_.run(local);
  };
  const bool is_watched = gang_.memory().any_may_lack(local) && is_repeatable(local, parts.front());
  if (is_watched && !settle_()) throw CommandError(wire::FailureCode::kOperator, "a call before it failed");
  may_fail_ = may_fail_ || may_fail(local);
  for (int place = 1; place < devices(); ++place) send(place);
  try {
    if (is_watched) run_where_room(plan, words, run, send);
    else run();
  } catch (...) {  // the others were told to make what this one did not
    gang_.withdraw(plan, words);
    throw;
  }
  std::vector<const OutputPlan*> outputs;
  flatten(plan.outputs, outputs);
  for_each_made(plan, words, [&](size_t index, uint64_t id) {
    const Way::Made made = way.starts.empty() ? Way::Made{{Sharing::kCopies, 0, 0}, outputs[index]->storage_bytes} : way.made[index];
    shares_.made(id, made.placement, made.bytes);
  });
  for (const auto& [tensor, placement] : way.written) {
    size_t number = 0;
    for_each_tensor(plan, words, [&, tensor = tensor, placement = placement](size_t, uint64_t id) {
      if (number++ == tensor) storages_.at(id).share()->placement = placement;
    });
  }
}

void DataParallel::run_where_room(const Plan& plan, const wire::Words& words, const std::function<void()>& run, const std::function<void(int)>& send) {
  std::vector<int> short_of_room;
  for (int attempt = 0;; ++attempt) {
    std::exception_ptr error;
    const bool is_first = attempt == 0;
    if (is_first || (!short_of_room.empty() && short_of_room.front() == 0)) {
      try {
        run();
      } catch (const wire::WireError&) {
        throw;
      } catch (...) {
        error = std::current_exception();
        caller_.withdraw();
      }
    }
    short_of_room.clear();
    if (error) short_of_room.push_back(0);
    bool is_memory = !error || is_out_of_memory(error);
    for (auto& [place, failure] : gang_.settle_each()) {
      if (!error) error = std::make_exception_ptr(CommandError(failure.code, failure.message));
      is_memory = is_memory && failure.code == wire::FailureCode::kOutOfMemory;
      short_of_room.push_back(place);
    }
    if (!error) return;
    if (!is_first || !is_memory) std::rethrow_exception(error);
    const auto ids = storages_of(plan, words);
    for (const int place : short_of_room) {
      gang_.homes().empty(place, ids);
      for_each_made(plan, words, [&](size_t, uint64_t id) {
        if (place != 0) gang_.rank(place).free(id);
      });
      if (place != 0) send(place);
    }
  }
}

// On this device. What comes of rows with their sizes is cut into rows again.
void DataParallel::run_whole(Plan& plan, const wire::Words& words) {
  const auto ids = storages_of(plan, words);
  const auto layouts = layouts_of(plan);
  std::map<uint64_t, int64_t> written;  // the periods of what may be written to
  std::optional<LocalView> rows;
  std::vector<int64_t> sizes;
  auto layout = layouts.begin();
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    const Layout& view = **layout++;
    const Share* share = storages_.at(id).share();
    if (share == nullptr || share->placement.sharing != Sharing::kRows) return;
    if (!plan.mutated.empty()) written.emplace(id, share->placement.period);
    if (rows) return;
    rows = local_view(geometry_of(view), view.item_bytes, share->placement.period, devices());
    sizes = view.sizes;
  });
  if (!plan.mutated.empty()) gather(ids);
  try {
    run_on_whole(plan, words, ids);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    if (!is_repeatable(plan, words) || !is_out_of_memory(std::current_exception())) throw;
    caller_.withdraw();
    gang_.homes().empty(0, ids);
    run_on_whole(plan, words, ids);
  }
  for (const auto& [id, period] : written) shares_.cut(id, period);
  if (!rows) return;
  std::vector<const OutputPlan*> outputs;
  flatten(plan.outputs, outputs);
  for_each_made(plan, words, [&](size_t index, uint64_t id) {
    const Layout& made = *outputs[index]->layout;
    if (made.sizes != sizes || made.span_bytes() != outputs[index]->storage_bytes || made.span != made.numel) return;
    const int64_t period = forebay::worker::period_of(geometry_of(made), rows->dimension, rows->rows, made.item_bytes);
    const auto local = local_view(geometry_of(made), made.item_bytes, period, devices());
    if (local && local->dimension == rows->dimension && outputs[index]->storage_bytes % period == 0) shares_.cut(id, period);
  });
}

void DataParallel::run_on_whole(Plan& plan, const wire::Words& words, const std::vector<uint64_t>& ids) {
  Memory memory;
  for (const uint64_t id : ids) {
    if (storages_.at(id).share() == nullptr) shares_.gather(id);
    memory.emplace(id, shares_.whole(id, [&](int64_t bytes) { return device_.allocate(bytes, /*zeroed=*/false); }));
  }
  const Loan loan(storages_, memory);
  caller_.bind(plan, words);
  caller_.run(plan);
}

void DataParallel::leave() {
  on_ = false;
  const auto never = [] { return false; };
  owners_.leave_copies(never, {});
  owners_.leave_rows(never, {});
}

void DataParallel::park() {
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    Entry& entry = storages_.at(item.id);
    if (entry.share() == nullptr) continue;
    if (entry.share()->placement.sharing != Sharing::kRows) shares_.gather(item.id);
    else entry.replace(shares_.whole(item.id, [&](int64_t bytes) { return device_.allocate_parked(bytes); }));
  }
}

void DataParallel::gather(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    const Share* share = storages_.at(id).share();
    if (share == nullptr) continue;
    const int64_t bytes = storages_.at(id).bytes();
    const bool is_rows = share->placement.sharing == Sharing::kRows;
    if (is_rows && !(owners_.may_have_room(bytes) && owners_.make_room_at(0, bytes, ids))) shares_.host_rows(id);
    else shares_.gather(id);
  }
}

void DataParallel::keep(const std::vector<uint64_t>& ids, int place) {
  for (const uint64_t id : ids) {
    Entry& entry = storages_.at(id);
    if (entry.is_kept() && entry.home() == place) continue;
    if (entry.is_untouched()) entry.touch(device_);
    if (entry.is_in_rows()) gather({id});
    if (entry.is_partial()) shares_.merge({id});
    if (entry.share() != nullptr) {
      shares_.keep(id, place);
    } else {
      gang_.homes().bring(id, place);
      entry.keep();
    }
  }
}

void DataParallel::gather_to_read(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    const Share* share = storages_.at(id).share();
    if (share == nullptr || share->placement.sharing == Sharing::kCopies) continue;
    if (share->placement.sharing == Sharing::kRows) gather({id});
    else merge({id});
  }
}

}  // namespace forebay::worker
