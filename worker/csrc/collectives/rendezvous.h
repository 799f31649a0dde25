// How members of a process group come to a back end of PyTorch's in common. What they write into its store goes over the connections of the group, so
// that nothing listens for it.
#pragma once

#include <memory>
#include <string>

#include "collectives/device_library.h"
#include "collectives/process_group.h"
#include "collectives/team.h"

namespace forebay::worker {

// Has the library open what it has begun under this name. All members of the team call this at once. Returns nothing if all have it then, else why
// none has. Throws GroupEnded.
std::string open_together(const std::shared_ptr<DeviceLibrary>& library, ProcessGroup& group, const Team& team, const std::string& name);

}  // namespace forebay::worker
