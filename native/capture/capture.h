// A live sandbox becomes data: the tree is stopped, read, and let go on.
#pragma once

#include "capture/object_table.h"
#include "capture/write_tracking.h"

namespace venus {

// What the sandbox was forked from, if it was.
struct Lineage {
    std::vector<SealedExtent> extents;
    std::vector<FileIdentity> plans;
};

// pre: called as root of the host, on a thread that may ptrace and that ends afterwards.
// `external`: pipes and terminals that lead to the daemon; fork provides new ones for their slots.
// `reset_external`: connections to outside the sandbox come back reset; otherwise they are refused.
// `tracking`: what earlier captures of this sandbox know, so that only what was written since is copied;
// settle() it when the template stands.
// Throws Refused for state that cannot be rebuilt.
CaptureState capture_tree(pid_t init_host_pid, std::vector<ExternalEnd> external, Lineage lineage,
                          const std::function<void()> &while_stopped = {},
                          bool reset_external = false, WriteTracking *tracking = nullptr);

}  // namespace venus
