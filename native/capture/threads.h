// Capture of what belongs to one thread.
#pragma once

#include "capture/stopped_tree.h"
#include "restore/image.h"

namespace venus {

// Also settles how the original goes on (Tracee::set_continuation).
// The first thread of a process whose others run on: what /proc still tells.
ThreadImage capture_ended_thread(const StoppedProcess &process);
ThreadImage capture_thread(StoppedProcess &process, StoppedThread &thread);

}  // namespace venus
