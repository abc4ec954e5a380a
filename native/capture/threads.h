// Capture of what belongs to one thread.
#pragma once

#include "capture/stopped_tree.h"
#include "restore/image.h"

namespace venus {

// Also settles how the original goes on (Tracee::set_continuation).
ThreadImage capture_thread(StoppedProcess &process, StoppedThread &thread);

}  // namespace venus
