// System V shared memory, semaphores and message queues of the sandbox's IPC namespace.
#pragma once

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

// pre: on a thread that may change its IPC namespace, which it leaves changed.
void capture_system_v(StoppedTree &tree, CaptureState &state);

}  // namespace venus
