// A live sandbox becomes data: the tree is stopped, read, and let go on.
#pragma once

#include "capture/lineage.h"
#include "capture/object_table.h"
#include "capture/write_tracking.h"

namespace venus {

struct CaptureRequest {
    pid_t init_host_pid;
    std::vector<ExternalEnd> external;  // lead to the daemon; fork provides new ones for their slots
    Lineage lineage;
    std::function<void()> while_stopped;
    std::function<void()> checkpoint;  // called every now and then; what it throws ends the capture
    bool reset_external = false;  // connections to outside come back reset instead of being refused
    // What earlier captures of this sandbox know, so that only what was written since is copied;
    // settle() it when the template stands.
    WriteTracking *tracking = nullptr;
};

// pre: called as root of the host, on a thread that may ptrace and that ends afterwards.
// Throws Refused for state that cannot be rebuilt.
CaptureState capture_tree(CaptureRequest request);

}  // namespace venus
