// What processes and threads give back to System V semaphores when they end (SEM_UNDO).
//
// The kernel tells nobody, but it refuses an operation that would take the amount out of its range.
// Such operations are tried in the process that has the list, each in one call with another that
// cannot be done: so none of them is.
#pragma once

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

// pre: the calling thread is in the sandbox's IPC namespace and its semaphores are in the image.
void capture_semaphore_undo(StoppedTree &tree, CaptureState &state);

}  // namespace venus
