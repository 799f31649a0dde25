#include "stream/forks.h"

#include <pthread.h>

#include <mutex>
#include <utility>

#include "base/autograd_threads.h"
#include "base/devices.h"
#include "base/leaf_mutex.h"
#include "base/publication.h"
#include "base/python.h"
#include "forebay/checkpoints.h"
#include "forebay/image.h"

namespace forebay {

using wire::Command;

namespace {

thread_local uint64_t next_fork = 0;  // the number of its checkpoint

}  // namespace

// A fork copies what is recorded as it is: its locks are held across it, so that it is whole in the child.
void Forks::follow() {
  static const auto each = [](void (*see)(CommandStream&)) {
    for (c10::DeviceIndex device = 0; device < kDevicesMax; ++device) see(CommandStream::of(device));
  };
  each([](CommandStream&) {});  // they are there before the first fork
  ::pthread_atfork(
      [] {
        each([](CommandStream& stream) {
          stream.commands_.mutex().lock();
          Forks(stream).prepare();
        });
        LeafMutex::lock_all();
        hold_backward_queues();
      },
      [] {
        let_go_of_backward_queues();
        LeafMutex::unlock_all();
        each([](CommandStream& stream) { stream.commands_.mutex().unlock(); });
      },
      [] {
        let_go_of_backward_queues();
        LeafMutex::unlock_all();
        each([](CommandStream& stream) {
          stream.commands_.mutex().unlock();
          Forks(stream).begin_child();
        });
        forked_publication();
      });
}

void Forks::begin(uint64_t number) { next_fork = number; }

void Forks::prepare() {
  auto& session = stream_.session_;
  auto& commands = stream_.commands_;
  LastFork& last = stream_.last_fork_;
  if (!session.connected || session.origin != 0) return;  // a child of a child that has not begun begins as that would
  if (next_fork == 0 || !stream_.worker_.copies_checkpoints || commands.meetings().are_known()) {
    last = {};
    return;
  }
  commands.tracer().say_frees();
  if (last.checkpoint != 0 && last.changes == commands.changes()) return;
  auto& out = commands.cut();
  out.command(Command::kCheckpoint);
  out.varint(next_fork);
  out.u8(wire::kForForks);
  commands.appended();
  last = {next_fork, commands.changes()};
}

// The session stands as one that has left its worker, and is not at another one yet. What the parent recorded the parent sends.
void Forks::begin_child() {
  stream_.forked();
  auto& session = stream_.session_;
  const uint64_t checkpoint = std::exchange(stream_.last_fork_, {}).checkpoint;
  session.broken = false;
  if (session.connected && session.origin == 0) {
    session.origin = checkpoint;
    stream_.commands_.drop_recorded();
    if (auto* knowledge = stream_.failures_.knowledge()) knowledge->forget();
  }
  session.away = session.origin != 0;
  if (session.away) return stream_.journal_.forked(wire::kSharedImage);
  stream_.journal_.give_up();
  if (session.connected.exchange(false)) session.forked = true;
}

uint64_t Forks::taken() {
  const std::lock_guard lock(stream_.commands_.mutex());
  return stream_.last_fork_.checkpoint;
}

void Forks::drop(uint64_t checkpoint) {
  const WithoutGil free;
  const std::lock_guard lock(stream_.commands_.mutex());
  if (!stream_.session_.connected) return;
  auto& out = stream_.commands_.command();
  out.command(Command::kDropCheckpoint);
  out.varint(checkpoint);
  stream_.commands_.appended();
}

}  // namespace forebay
