// More than the memory holds: what calls made is let go where memory is short, and made again, by the same calls, before it is used.
//
// Which storages are let go is decided as in Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021): those that take the least time
// to make again for their bytes and for how long nothing has used them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <forebay/traces.h>

#include "call/call.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "recomputation/call_repeater.h"
#include "recomputation/lineage.h"
#include "recomputation/origins.h"
#include "recomputation/products.h"

namespace forebay::worker {

class Recomputation final : public ProductHost {
 public:
  Recomputation(const Device& device, Storages& storages) : storages_(storages), repeater_(std::make_unique<DeviceRepeater>(device, storages)), products_(*this, storages) {}
  ~Recomputation() override;
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;

  // From here on calls are carried out again by another; there were none yet.
  void repeat_by(std::unique_ptr<CallRepeater> repeater) { repeater_ = std::move(repeater); }
  // To be called with nothing let go.
  void turn(bool on) { is_on_ = on; }
  bool is_on() const { return is_on_; }

  // Each of these may throw c10::OutOfMemoryError or CommandError for what finds no place.

  // A call comes: all that it is given is in memory, and there is room for what it makes.
  void begin(const Plan& plan, const wire::Words& words);
  // Has the caller carry out the call that it has bound, after `begin`; again where there was no memory for it.
  void run(Caller& caller, const RecordedCall::Call& call);
  // The call that has begun was carried out, by whoever.
  void note(const RecordedCall::Call& call, double seconds);
  // A command reads a storage, or writes to it, whose memory is about to be changed for that.
  void use(uint64_t id, bool writes);
  // Calls from this one on have had no effect after all, and storages were never made.
  void withdraw(uint64_t sequence, const std::vector<uint64_t>& never_made);
  // An allocation of so many bytes comes, and has come.
  void begin_allocation(int64_t bytes);
  void note_allocation(uint64_t id);
  // The command ends: what it used may be let go.
  void end();

  // Makes everything that was let go, where it may compute, and may let go nothing of it afterwards. Returns the storages that it did not make: they
  // are lost.
  std::vector<uint64_t> settle(bool may_compute);
  // Makes what was let go as far as there is room.
  void restore();
  // What it knows of storages.
  Products& products() { return products_; }
  const Products& products() const { return products_; }

 private:
  class Lock;
  struct Written {
    Product* product = nullptr;
    Lineage origin;
    bool was_zeros = false;
  };

  // Of a storage, by its watch.
  void read(Product& product) override;
  void write(Product& product) override;
  void move(Product& product) override { repeater_->moves_storages() ? read(product) : write(product); }
  bool keeps_freed(Product& product) override;
  void forget(Product& product) override;

  // What a call that has been carried out leaves.
  void record_results(const RecordedCall::Call& call, double seconds);
  void record_write(const RecordedCall::Call& call, double seconds);
  std::vector<Input> inputs_of(const Plan& plan, const wire::Words& words, const Product* except);
  void prepare_write(const Plan& plan, const wire::Words& words);

  // Letting go, and making again.
  void make_room(const Need& need);
  // Lets go until that is enough, given how many bytes were let go, if it can. Returns how many.
  using IsEnough = std::function<bool(int64_t gone)>;
  int64_t let_go(const IsEnough& is_enough);
  int64_t let_go(const IsEnough& is_enough, int64_t gone, bool of_last_calls);
  void let_go(Product& product);
  // With all that it is made of.
  void recompute(Product& product);
  // As recompute, while something else is.
  void remake(Product& product);
  void repeat(RecordedCall& call, Product& product);
  void rerun(RecordedCall& call, Product& product);
  // Makes what was made of the product and let go, and ends that it can be made again: its bytes are about to change.
  void settle_users(Product& product);
  void come_back(Product& product);
  // Makes it, if there is room. Whether there was.
  bool comes_back(Product& product);

  void bury();

  Storages& storages_;
  std::unique_ptr<CallRepeater> repeater_;
  bool is_on_ = false;
  Products products_;
  ProductLocks locked_;              // by the present command, as often as it used them
  Origins origins_;
  std::vector<Product*> remade_; // since `is_repeating_`
  bool is_repeating_ = false;
  const Product* buried_ = nullptr;  // the one that is being freed at last
  Written written_;                  // by the present call, where that can be told
};

}  // namespace forebay::worker
