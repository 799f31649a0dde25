// Images of the session that outlive this process: written for its client, and read in the place of a worker that died.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <forebay/image.h>
#include <forebay/wire.h>

#include "base/clock.h"
#include "server/connection.h"
#include "server/mailbox.h"
#include "server/orders.h"
#include "session/image_folder.h"
#include "session/session.h"

namespace forebay::worker {

class Images {
 public:
  Images(Session& session, Mailbox& mailbox, Connection& connection) : session_(session), mailbox_(mailbox), connection_(connection) {}

  void keep_in(ImageFolder folder) { folder_ = std::move(folder); }
  // Whether the session has images.
  bool are_kept() const { return folder_.is_set(); }
  // What the session has here before its client comes.
  void begin_with(wire::Begun begun) { begun_ = begun; }
  // What WELCOME says of that, and of the images that are there.
  wire::SessionImages session_images() const;
  // The session leaves, and its client names the image that is to stay, 0: none is; and the one from which it would go on until that is there, 0: none.
  void leave(uint64_t number, uint64_t base);
  // Writes that image of a session that has left. Returns its number; 0 if there is none.
  uint64_t keep_last();
  // Another worker comes for what the session left.
  void drop_base();
  // The session goes on from the image of this number. Throws std::runtime_error where that cannot be used.
  void go_on_from(uint64_t number);

  // What the session held at a checkpoint becomes the first image of another session: now, or once that checkpoint has come. The pool hears of it.
  void copy(orders::Copy order);
  // To be called behind each command.
  void copy_what_came() {
    if (!copies_.empty()) [[unlikely]] make_copies();
  }

  // Commands. They throw wire::WireError for what is not the protocol; the second one also for an image that cannot be used.
  void keep(wire::Reader& frame);
  void restore(wire::Reader& frame);

 private:
  // Returns the image's bytes. Throws std::exception: why there is none.
  int64_t write(uint64_t number, uint64_t base, Clock::time_point until = Clock::time_point::max());

  void make_copies();
  void make_copy(const orders::Copy& order);
  // Returns the image's bytes. Throws as write.
  int64_t copy_to(const orders::Copy& order);

  Session& session_;
  Mailbox& mailbox_;
  Connection& connection_;
  ImageFolder folder_;
  wire::Begun begun_ = wire::Begun::kNothing;
  uint64_t last_ = 0;  // that is to stay when the session has left
  uint64_t base_ = 0;  // that stays until another worker has come for the session
  std::vector<orders::Copy> copies_;      // of checkpoints that have not come
  std::optional<orders::Copy> copied_{};  // the last one that was written
};

}  // namespace forebay::worker
