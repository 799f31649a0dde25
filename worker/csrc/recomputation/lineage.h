// How storages were made: the calls that make their bytes again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include <forebay/traces.h>

#include "call/plan.h"
#include "device/storage.h"

namespace forebay::worker {

class Product;
class RecordedCall;

// Who lets go of products, and makes them once more.
class ProductHost {
 public:
  virtual ~ProductHost() = default;
  virtual void read(Product& product) = 0;
  virtual void write(Product& product) = 0;
  // Something is about to change its memory, which need not change its bytes.
  virtual void move(Product& product) = 0;
  virtual bool keeps_freed(Product& product) = 0;
  // It ends.
  virtual void forget(Product& product) = 0;
};

// What a recorded call was given.
struct Input {
  Product* product;
  bool is_read;  // its bytes decide what the call makes; else it must only be there
};

struct User {
  RecordedCall* call;
  bool reads;
};

// A call that was carried out, and makes the same bytes again: its words name its inputs, and hold the seed of what it draws.
class RecordedCall {
 public:
  struct Call {
    uint64_t number;  // of its template
    Plan& plan;
    const wire::Words& words;
    uint64_t sequence;
  };
  RecordedCall(const Call& call, double seconds, const std::vector<Input>& inputs);
  ~RecordedCall();
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  std::vector<Product*> inputs() const;
  std::vector<Input> given() const;

  const uint64_t number;  // of its template
  Plan& plan;
  const wire::Words words;
  const uint64_t sequence;
  const double seconds;           // it took
  std::vector<Product*> outputs;  // that it makes again

 private:
  struct Use {
    Product* input;
    std::list<User>::iterator place;  // among the input's users
  };
  std::vector<Use> uses_;
};

using Lineage = std::vector<std::shared_ptr<RecordedCall>>;

// A storage that a call was given or made.
class Product final : public StorageWatch {
 public:
  Product(ProductHost& host, uint64_t id, Entry& entry) : id(id), entry(entry), host_(host) {}
  ~Product() override;

  void before_read() override;
  void before_write() override;
  void before_placed_write() override;
  bool stays_when_freed() override;
  bool is_freed() const override { return freed; }

  const uint64_t id;
  Entry& entry;
  Lineage origin;           // the call that made it, then those that wrote to it; none: it cannot be made again
  std::list<User> users;   // recorded calls that were given it
  bool is_zeros = false;   // nothing has written to it yet
  bool freed = false;      // by the client; what was made of it needs it
  bool is_orphan = false;  // freed, and needed no more
  bool absent = false;     // its memory was taken away
  int locks = 0;           // of those who use its memory now
  int depth = 0;           // the longest chain of calls from what cannot be made again
  uint64_t last_used = 0;  // as the recomputation's clock
  uint64_t last_call = 0;  // of the program, that made it or was given it
  size_t place = 0;        // among the recomputation's products

 private:
  ProductHost& host_;
};

}  // namespace forebay::worker
