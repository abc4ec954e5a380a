// What a program has told the kernel about itself, and only the kernel knows: prctl and its like.
#pragma once

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

void capture_process_settings(StoppedProcess &process, pid_t init_host_pid, ProcessImage &image);
void capture_thread_settings(StoppedProcess &process, StoppedThread &thread, ThreadImage &image);

}  // namespace venus
