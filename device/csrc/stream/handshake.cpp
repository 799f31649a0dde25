#include "stream/handshake.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include "replay/frames.h"

namespace forebay {

using wire::Command;
using wire::Reply;

void send_hello(Sender& sender, const std::string& ticket) {
  sender.send_first(framed([&](wire::Writer& out) {
    out.command(Command::kHello);
    out.raw(&wire::kMagic, sizeof(wire::kMagic));
    out.varint(wire::kVersion);
    out.raw(ticket.data(), ticket.size());
    out.string(TORCH_VERSION);
  }));
}

void receive_welcome(Receiver& receiver, const std::function<void(wire::Reader&)>& take) {
  receiver.receive_first([&](Reply reply, wire::Reader& body) {
    if (reply == Reply::kWelcome) {
      body.varint();
      return take(body);
    }
    const std::string message = reply == Reply::kRefused ? body.string(wire::kMessageBytesMax) : "it does not speak this protocol";
    TORCH_CHECK(false, "the worker refused the virtual device: ", message);
  });
}

bool share_memory(Sender& sender, Receiver& receiver, Connection& connection, SharedMemory& shared, uint64_t request) {
  sender.send_first(framed([&](wire::Writer& out) {
    out.command(Command::kShare);
    out.varint(request);
    out.varint(SharedMemory::kBytes);
  }));
  bool shares = false;
  receiver.receive_one(request, [&](Reply reply, wire::Reader& body) {
    const uint64_t bytes = reply == Reply::kShared ? body.varint() : 0;
    const int descriptor = connection.take_descriptor();
    shares = bytes > 0 && descriptor >= 0;
    if (shares) shared.map(descriptor, bytes);
  });
  return shares;
}

}  // namespace forebay
