// Operations that give a process what its threads share, apart from memory.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// An open file may be in several processes: of the first of them, its descriptor; else null.
const DescriptorImage *first_descriptor(const TreeImage &tree, const ProcessImage &process,
                                        uint32_t object);
// The process's own numbers for its open files; then the objects are dropped.
void add_descriptor_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops);
void add_signal_action_ops(const ProcessImage &process, OpList &ops);
void add_limit_ops(const ProcessImage &process, OpList &ops);
// Makes the timers, armed by none. pre: all threads exist.
void add_timer_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops);
bool has_armed_timers(const ProcessImage &process);
void add_timer_start_ops(const ProcessImage &process, OpList &ops);
// pre: every thread has its credentials; a change of them clears what is set here.
void add_last_ops(const ProcessImage &process, OpList &ops);
void add_seccomp_ops(const ProcessImage &process, OpList &ops);

}  // namespace venus
