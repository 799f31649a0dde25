// The command stream of one virtual device: what is recorded goes out in order, in the background; reads wait for their answer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "deduplication.h"
#include "failures.h"
#include "forebay/gang_work.h"
#include "forebay/segments.h"
#include "forebay/spin.h"
#include "forebay/wire.h"
#include "locations.h"
#include "publication.h"
#include "shared_memory.h"
#include "storage.h"
#include "tracer.h"
#include "transfer.h"
#include "waiting.h"

namespace forebay {

struct Welcome {
  std::string torch;
  std::string kind;
  std::string model;
  uint64_t memory_limit;
  std::string no_kernels;
};

struct StreamStatistics {
  uint64_t calls;
  uint64_t expected;  // steps, of calls and allocations, that took no bytes of their own
  uint64_t frames_sent;  // of commands, closed for sending; a bulk upload's own are not among them
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t syncs;
  uint64_t waited_ns;
  uint64_t bytes_known;  // of uploads that were not sent, because the worker held them
};

// Where a worker lets in the others of a process group, and what they show it.
struct GroupDoor {
  uint64_t group = 0;
  uint64_t generation = 0;  // of the session
  std::string address{};
  std::string ticket{};
};

class CommandStream {
 public:
  static CommandStream& of(c10::DeviceIndex device);
  static CommandStream& of(const StorageHandle& handle) { return of(handle.device); }

  c10::DeviceIndex device() const { return device_; }

  // Session. A generation ends when its tensors are lost; storages of an earlier one are refused.
  Welcome connect(const std::string& address, const std::string& ticket);
  void lose(const std::string& message);
  // Ends the stream at this worker: what is recorded from now on waits for the next `connect`. False where there is no worker to leave.
  bool leave();
  bool connected() const { return connected_.load(); }
  // The bytes that the flavor allows, once a lease told them.
  int64_t memory_limit() const { return memory_limit_.load(std::memory_order_relaxed); }
  // Stands for the kind of device and its PyTorch.
  uint64_t kind_of_worker() const { return kind_of_worker_.load(std::memory_order_relaxed); }
  bool worker_is_cpu() const { return worker_is_cpu_.load(std::memory_order_relaxed); }
  // Whether it computes by the kernels that PyTorch has for GPUs, or stands for one that does: not where a back end is out of PyTorch's tree.
  bool worker_is_gpu() const { return worker_is_gpu_.load(std::memory_order_relaxed); }
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }
  void check_generation(uint64_t generation) {
    if (generation != this->generation()) [[unlikely]] refuse_generation();
  }

  // Lease. `callback` blocks until one is open, or throws.
  void set_lease_callback(std::function<void()> callback);
  void need_lease() {
    if (!lease_open_.load(std::memory_order_acquire)) [[unlikely]] wait_for_lease();
  }
  void lease_opened(uint64_t epoch, int64_t memory_bytes) {
    const std::lock_guard lock(mutex_);
    if (away_) return;  // it was for the worker that the session has left
    memory_limit_.store(memory_bytes, std::memory_order_relaxed);
    epoch_.store(epoch, std::memory_order_relaxed);
    lease_open_.store(true, std::memory_order_release);
    tell_lease(device_, true);
  }
  void lease_closed() {
    lease_open_.store(false, std::memory_order_release);
    tell_lease(device_, false);
  }
  bool mark();

  // Recording. A command is appended whole while `mutex()` is held.
  uint64_t new_storage() { return next_storage_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t new_storages(uint64_t count) { return next_storage_.fetch_add(count, std::memory_order_relaxed); }
  std::mutex& mutex() { return mutex_; }
  wire::Writer& buffer() { return pending_; }
  Tracer& tracer() { return tracer_; }
  // Where commands go, within a frame; for the tracer.
  wire::Writer& frame();
  // The current thread moves data that nobody waits for; where a call before that fails, it does not come about.
  void note_transfer() { transfers_.insert_or_assign(current_thread(), calls_); }
  uint64_t next_call() {
    unsynchronised_.store(true, std::memory_order_relaxed);
    note_thread(device_, calls_);
    return calls_++;
  }
  // Before an append, under the lock.
  void open_frame();
  // As open_frame, for a command that ends a segment (docs/wire.md).
  void cut();
  // To be called under the lock after an append; sends when much is pending once the lock is given up by `sent_if_due`.
  void appended();
  void send_if_due() {
    if (due_.load(std::memory_order_relaxed) != Due::kNo) [[unlikely]] send_due();
  }

  void allocate(uint64_t id, int64_t bytes);
  void resize(const StorageHandle& handle, int64_t bytes);
  void renew(StorageHandle& handle, int64_t bytes);
  void free(const StorageHandle& handle);
  Contents& contents() { return contents_; }
  // Returns when `data` may be changed. With `source`, which keeps it alive, that is not before the next synchronisation.
  void write(StorageHandle& storage, int64_t offset, const void* data, int64_t bytes, c10::Storage source = c10::Storage(nullptr));
  void read(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes);
  // As read, but the bytes are there only after the next synchronisation. `target` keeps them alive.
  void read_later(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes, c10::Storage target);
  void synchronize() { await(std::nullopt); }
  // Waits for the call of this number, which the current thread has just recorded: its failure is thrown as the operator itself would.
  void finish(uint64_t sequence) { await(sequence); }
  // Throws the failure that stopped the worker, where the current thread issued what failed or has lost a call by it, or nobody else took notice of it.
  // A failure of the call `own` is thrown as the operator itself would.
  void check_stopped(std::optional<uint64_t> own = std::nullopt) {
    if (noticed_.load(std::memory_order_relaxed)) [[unlikely]] throw_notice(own);
  }
  // Of the random calls that are recorded; under the lock.
  RandomCalls& random_calls() { return random_calls_; }
  // The number of the next call; under the lock.
  uint64_t upcoming_call() const { return calls_; }
  // Of the last failure that the program has heard of.
  uint64_t heard() const { return heard_.load(std::memory_order_relaxed); }
  // The worker notes when it carries out the next calls; what it noted comes with `tell_times`, without a lease.
  void time_calls(size_t calls);
  void tell_times(const std::function<void(wire::Reader&)>& take);
  // What came so far, in segments; without a lease.
  std::vector<wire::Segment> segments();
  // Of a session with several devices, what they did together and alone so far; of one device without a worker. Without a lease.
  wire::GangWork gang_work();
  // Appends by `append(request)` under the lock, notes the location of the call whose number that returns, and gives the body of
  // the OUTPUTS reply to `take`.
  void ask(uint64_t generation, const std::function<uint64_t(uint64_t)>& append, const std::function<void(wire::Reader&)>& take);
  // The lock for an append that is about storages of a generation; throws where that has ended. Between two workers it waits for the
  // new one.
  std::unique_lock<std::mutex> lock_for(uint64_t generation);
  // As lock_for, of commands that name no tensor.
  std::unique_lock<std::mutex> lock_to_append();

  // Process groups: groups.cpp. Asks the worker to become a member, under a lease.
  GroupDoor open_door(uint64_t rank, uint64_t size, std::chrono::milliseconds patience);
  void tell_member(uint64_t generation, uint64_t group, uint64_t member, const std::string& address, const std::string& ticket);
  void leave_group(uint64_t generation, uint64_t group);
  // Records a collective, which `append` writes under the lock.
  void collect(uint64_t generation, const std::function<void(wire::Writer&)>& append);

  // Kernels of the program: kernels_of_programs.cpp. Why there is none of this number at the worker; nothing: it is there. Takes a lease.
  struct KernelRefusal {
    wire::FailureCode code;
    std::string why;
  };
  std::optional<KernelRefusal> define_kernel(uint64_t number, const std::string& source);
  // Records a launch, whose arguments `append` writes under the lock. False where the worker has no such kernel.
  bool launch(uint64_t generation, uint64_t kernel, const std::function<void(wire::Writer&)>& append);

  StreamStatistics statistics() const;

 private:
  friend struct Streams;

  // Records a command that ends a segment and is counted as a call, unless `append` returns false and has written nothing.
  bool carry(uint64_t generation, const std::function<bool(wire::Writer&)>& append);

  void await(std::optional<uint64_t> own);
  // Asks by a command that needs no lease, and has nothing but the number of its answer and what `append` adds to it.
  void ask_aside(wire::Command command, const std::function<void(wire::Reader&)>& take, const std::function<void(wire::Writer&)>& append = {});
  [[noreturn]] void refuse_generation();
  [[noreturn]] void fail_connection(const std::string& what);
  void abandon(const std::string& message);
  void greet(const std::string& ticket);
  Welcome be_welcomed();
  void end_stream(uint64_t request);
  std::unique_lock<std::mutex> lock_to_send();
  std::unique_lock<std::timed_mutex> lock_to_receive();
  void wait_for_lease();
  void close_frame();
  void appended_to_send();
  void put_question();
  void send_due();
  void send_early();
  enum class Due : uint8_t { kNo, kEarly, kYes };
  enum class Wait : uint8_t { kNo, kYes };
  void flush(Wait wait);
  void take_pending(std::vector<uint8_t>& target, bool cuts = false);
  bool has_pending();
  void say_frees();
  bool sleep_until_woken();
  bool peer_is_busy() const;
  bool is_asking() const { return answers_.load(std::memory_order_relaxed) != syncs_.load(std::memory_order_relaxed); }
  bool drain_outgoing(Wait wait);
  void wait_ready(short events);
  void wake_ticker();

  // A wait for an answer, from before it is asked for: without the GIL, under the lease and receive_mutex_, counted and timed.
  class Question {
   public:
    // `own`: the call that is waited for.
    explicit Question(CommandStream& stream, std::optional<uint64_t> own = std::nullopt);
    ~Question();
    // Under mutex_, with the append of what is answered once all before it is done.
    void settles();
    // It was answered, and no failure is left to tell.
    void settled() { settled_ = true; }

   private:
    const WithoutGil free_;
    const WaitClock clock_;
    CommandStream& stream_;
    std::unique_lock<std::timed_mutex> lock_;
    bool settled_ = true;
  };

  // Bulk data: transfer.cpp. Under send_mutex_ or receive_mutex_, by direction.
  void share_memory();
  bool copy_known(StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes, uint64_t fingerprint);
  void write_small(const StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes);
  void send_upload(uint64_t generation, Upload upload);
  bool drain_uploads(Wait wait);
  bool advance(Upload& upload, Wait wait);
  bool send_payload(Upload& upload, Wait wait);
  void put_write(const Upload& upload, wire::Command command, uint64_t bytes, uint64_t place);
  bool offer(Upload& upload, Wait wait);
  void check_alive();
  void forget_transfers();
  uint64_t append_read(const StorageHandle& storage, int64_t offset, int64_t bytes, const uint8_t* slot, Question* question = nullptr);
  void read_through_memory(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes);
  void read_through_socket(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes);
  void receive_data(uint64_t request, uint8_t* target, size_t bytes);
  bool receive_payload(uint64_t request, uint8_t* target, size_t bytes);
  void take_download(uint64_t request, wire::Reply reply, wire::Reader& body);
  void finish_downloads_to(const uint8_t* data, int64_t bytes);
  void tell_late_failure();
  uint64_t new_request() { return next_request_.fetch_add(1); }
  void receive(uint64_t request, const std::function<void(wire::Reply, wire::Reader&)>& take);
  // Whether the next frame is the answer; another's is dealt with.
  bool receive_one(uint64_t request, const std::function<void(wire::Reply, wire::Reader&)>& take);
  void receive_frame();
  void fill(size_t bytes);
  size_t receive_some(uint8_t* target, size_t bytes);
  ssize_t receive_at_once(uint8_t* target, size_t bytes);
  // Failures: failures.cpp.
  void check_failure(wire::Reply reply, wire::Reader& body, std::optional<uint64_t> own = std::nullopt);
  [[noreturn]] void throw_failure(const ToldFailure& failure, std::optional<uint64_t> own = std::nullopt);
  void hear(const ToldFailure& failure);
  void tell_others(const ToldFailure& failure);
  void forget_told(const ToldFailure& failure);
  // Whether something that the current thread recorded did not come about, of which it has not heard yet.
  bool has_lost();
  void take_notice(wire::Reply reply, wire::Reader& body);
  [[gnu::cold]] void throw_notice(std::optional<uint64_t> own);
  void forget_failures();
  void listen();
  bool has_whole_frame();

  void run_ticker();
  void start_ticker();
  void forked();

  c10::DeviceIndex device_ = 0;
  std::atomic<bool> connected_{false};
  std::atomic<bool> worker_is_cpu_{false};
  std::atomic<bool> worker_is_gpu_{false};
  std::atomic<uint64_t> kind_of_worker_{0};
  std::atomic<int64_t> memory_limit_{wire::kStorageBytesMax};
  std::atomic<bool> lease_open_{false};
  std::atomic<bool> forked_{false};
  std::atomic<uint64_t> generation_{1};
  std::atomic<uint64_t> next_storage_{1};
  std::atomic<uint64_t> next_request_{1};
  std::atomic<uint64_t> next_group_{1};
  std::function<void()> lease_callback_;
  std::string no_kernels_;  // why the worker takes none of programs; guarded by mutex_
  std::mutex lease_mutex_;
  std::atomic<uint64_t> epoch_{0};
  std::string lost_message_;  // guarded by mutex_

  // Between two workers. Set and, at the new one, reset under the three locks that follow, so that who holds one of them knows.
  std::atomic<bool> away_{false};

  std::mutex mutex_;  // guards pending_, tracer_, frame_start_, calls_
  wire::Writer pending_;
  Tracer tracer_{*this};
  size_t frame_start_ = 0;
  bool frame_open_ = false;
  uint64_t calls_ = 0;
  size_t since_question_ = 0;  // commands; likewise guarded
  size_t since_sent_ = 0;
  bool asks_often_ = false;  // the last question came soon after the one before, so the worker waits for what is recorded
  std::atomic<bool> unsynchronised_{false};
  std::atomic<bool> synchronising_{false};
  std::atomic<Due> due_{Due::kNo};

  std::mutex send_mutex_;  // guards outgoing_, sent_; taken before mutex_
  std::vector<uint8_t> outgoing_;
  size_t sent_ = 0;
  std::atomic<bool> unsent_{false};
  std::deque<Upload> uploads_;  // after outgoing_; what was recorded since the last one is in pending_
  std::atomic<bool> uploading_{false};
  std::vector<c10::Storage> sent_sources_;  // given up by a thread that may take the GIL
  std::atomic<int> socket_{-1};

  std::timed_mutex receive_mutex_;  // guards incoming_, spinner_, bulk_spinner_; taken before send_mutex_
  std::vector<uint8_t> incoming_;
  size_t filled_ = 0;
  std::deque<Download> downloads_;
  std::atomic<bool> downloading_{false};
  size_t later_slots_ = 0;  // in use by downloads_, from the first on
  std::optional<ToldFailure> late_failure_;
  Spinner spinner_;       // waits for an answer
  Spinner bulk_spinner_;  // waits for a piece of bulk data
  int descriptor_ = -1;  // that came with the last frame
  uint64_t heard_generation_ = 0;  // of the session at the other end

  // A worker carries out nothing from a failure on, until it is told that the program has heard of it.
  std::atomic<uint64_t> heard_{0};  // changed under mutex_
  RandomCalls random_calls_;        // guarded by mutex_
  std::mutex notice_mutex_;         // guards notice_, noticed_at_, also_told_; taken after mutex_
  std::optional<ToldFailure> notice_;           // nobody has heard of it
  std::map<ThreadTag, ToldFailure> also_told_;  // to be thrown by threads whose calls did not come about either
  std::map<ThreadTag, uint64_t> transfers_;  // by thread: how many calls came before its last one; guarded by mutex_
  std::chrono::steady_clock::time_point noticed_at_;
  std::atomic<bool> noticed_{false};

  Contents contents_;
  SharedMemory shared_;  // mapped while both locks are held
  std::atomic<bool> shared_in_use_{false};  // since the last answer that was waited for: the next one is near

  std::atomic<uint64_t> frames_{0};
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
  std::atomic<uint64_t> syncs_{0};
  std::atomic<uint64_t> answers_{0};  // or what else ended the wait for them
  std::atomic<uint64_t> waited_ns_{0};
  std::atomic<uint64_t> bytes_known_{0};

  std::atomic<bool> ticker_runs_{false};
  std::mutex ticker_mutex_;
  std::condition_variable ticker_wake_;
  std::atomic<bool> ticker_asleep_{false};
};

}  // namespace forebay
