// Operations for what programs tell the kernel about themselves: prctl and its like.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: the process has its memory, one thread (registering barriers then costs nothing) and none of
// its own descriptors.
void add_process_setting_ops(const ProcessImage &process, OpList &ops);
// pre: the process has its memory: a personality changes what mmap does.
void add_thread_setting_ops(const ThreadImage &thread, OpList &ops);
// Nothing may be mapped afterwards.
void add_memory_rights_ops(const ProcessImage &process, OpList &ops);

}  // namespace venus
