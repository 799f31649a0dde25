// More than the memory holds: what calls made is let go where memory is short, and made again, by the same calls, before it is used.
//
// Which storages are let go is decided as in Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021): those that take the least time
// to make again for their bytes and for how long nothing has used them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <forebay/traces.h>

#include "call/call.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "recomputation/lineage.h"

namespace forebay::worker {

class Recomputation final : public ProductHost {
 public:
  Recomputation(const Device& device, Storages& storages) : device_(device), storages_(storages), caller_(device, storages) {}
  ~Recomputation() override;
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;

  // To be called with nothing let go.
  void turn(bool on) { is_on_ = on; }
  bool is_on() const { return is_on_; }

  // Each of these may throw c10::OutOfMemoryError or CommandError for what finds no place.

  // A call comes: all that it is given is in memory, and there is room for what it makes.
  void begin(const Plan& plan, const wire::Words& words);
  // Has the caller carry out the call that it has bound, after `begin`; again where there was no memory for it.
  void run(Caller& caller, Plan& plan, const wire::Words& words);
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
  // Whether something that the client has is let go.
  bool lacks_any() const;

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
  bool keeps_freed(Product& product) override;
  void forget(Product& product) override;

  Product& product_of(uint64_t id);
  void lock(Product& product);
  void unlock_to(size_t count);

  // What a call that has been carried out leaves.
  void record_results(Plan& plan, const wire::Words& words, double seconds);
  void record_write(Plan& plan, const wire::Words& words, double seconds);
  std::vector<Input> inputs_of(const Plan& plan, const wire::Words& words, const Product* except);
  void prepare_write(const Plan& plan, const wire::Words& words);

  // Letting go, and making again.
  void make_room(int64_t bytes);
  // Lets go of so many bytes, if it can. Returns how many.
  int64_t let_go(int64_t bytes);
  int64_t let_go(int64_t bytes, bool of_last_calls);
  void let_go(Product& product);
  void recompute(Product& product);
  void repeat(RecordedCall& call, Product& product);
  void rerun(RecordedCall& call, Product& product);
  // Makes what was made of the product and let go, and ends that it can be made again: its bytes are about to change.
  void settle_users(Product& product);
  void come_back(Product& product);
  // Makes it, if there is room. Whether there was.
  bool comes_back(Product& product);

  // What is in memory stays there until it is freed, rather than keep the product, of which it would be made again.
  void give_up(const Product& product);
  void drop_origin(Product& product);
  void drop(Lineage origin, Product& product);
  void release(Lineage origin);
  void bury();

  const Device& device_;
  Storages& storages_;
  Caller caller_;  // of what is made again
  bool is_on_ = false;
  uint64_t calls_ = 0;               // of the program
  uint64_t clock_ = 0;               // counts them, and those that are carried out again
  std::vector<Product*> products_;
  std::vector<Product*> locked_;     // by the present command, as often as it used them
  std::vector<Product*> orphans_;    // freed by the client, and no longer needed
  const Product* buried_ = nullptr;  // the one that is being freed at last
  Written written_;                  // by the present call, where that can be told
};

}  // namespace forebay::worker
