// Whether the processes of a fork have come to where their originals were.
#pragma once

#include <memory>
#include <vector>

#include "capture/stopped_tree.h"
#include "memory/extent.h"

namespace venus {

// The sandbox, stopped at a moment when no thread is still being restored. `plans`: those that it may
// have been made by. Throws Refused when one does not arrive.
std::unique_ptr<StoppedTree> stop_arrived(pid_t init_host_pid, const std::vector<FileIdentity> &plans);

}  // namespace venus
