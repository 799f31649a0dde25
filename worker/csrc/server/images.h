// Images of the session that outlive this process: written for its client, and read in the place of a worker that died.
#pragma once

#include <forebay/wire.h>

#include "server/connection.h"
#include "server/mailbox.h"
#include "session/image_folder.h"
#include "session/session.h"

namespace forebay::worker {

class Images {
 public:
  Images(Session& session, Mailbox& mailbox, Connection& connection) : session_(session), mailbox_(mailbox), connection_(connection) {}

  void keep_in(ImageFolder folder) { folder_ = std::move(folder); }
  // Whether the session has images.
  bool are_kept() const { return folder_.is_set() && !session_.gang().is_on(); }
  // The session leaves: the next worker keeps new ones.
  void drop() const { folder_.clear(); }

  // Commands. They throw wire::WireError for what is not the protocol; the second one also for an image that cannot be used.
  void keep(wire::Reader& frame);
  void restore(wire::Reader& frame);

 private:
  Session& session_;
  Mailbox& mailbox_;
  Connection& connection_;
  ImageFolder folder_;
};

}  // namespace forebay::worker
