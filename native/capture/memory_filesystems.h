// What lives in the memory of the sandbox beside its processes: files of its tmpfs mounts.
#pragma once

#include "capture/object_table.h"

namespace venus {

// pre: nothing in the sandbox runs. Enters the sandbox's IPC namespace: for threads that end
// afterwards. Refuses System V objects and POSIX message queues.
void capture_memory_filesystems(CaptureState &state);

}  // namespace venus
