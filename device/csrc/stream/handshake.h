// The first words between this side and a worker, under the locks of both directions.
#pragma once

#include <string>

#include "bulk/shared_memory.h"
#include "stream/receiver.h"
#include "stream/sender.h"

namespace forebay {

void send_hello(Sender& sender, const std::string& ticket);

// The worker's answer. `take` reads it; throws if the worker refuses.
void receive_welcome(Receiver& receiver, const std::function<void(wire::Reader&)>& take);

// Asks a worker on this host for memory to share, and maps it. Without that, bulk data go through the socket.
bool share_memory(Sender& sender, Receiver& receiver, Connection& connection, SharedMemory& shared, uint64_t request);

}  // namespace forebay
