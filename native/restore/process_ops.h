// Operations that give a process what its threads share, apart from memory.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

void add_oom_ops(const ProcessImage &process, OpList &ops);
// The own numbers of a table for its open files; then the objects are dropped.
void add_descriptor_ops(const ProcessPlanContext &context, const DescriptorTable &table,
                        OpList &ops);
// While the objects are there, in which a deleted one is.
void add_working_directory_ops(const ProcessPlanContext &context, const Directories &directories,
                               OpList &ops);
void add_root_directory_ops(const Directories &directories, OpList &ops);
// Drops what children have sent that were stopped or ended while the tree was rebuilt.
void add_signal_reset_ops(const TreeImage &tree, const ProcessImage &process, OpList &ops);
void add_signal_action_ops(const ProcessImage &process, OpList &ops);
void add_limit_ops(const ProcessImage &process, OpList &ops);
// Makes the timers, armed by none. pre: all threads exist.
void add_timer_ops(const ProcessImage &process, Word work_area, OpList &ops);
bool has_armed_timers(const ProcessImage &process);
void add_timer_start_ops(const ProcessImage &process, OpList &ops);
// pre: every thread has its credentials; a change of them clears what is set here.
// adopts: it is a subreaper so far.
void add_last_ops(const ProcessImage &process, bool adopts, OpList &ops);
void add_seccomp_ops(const ProcessImage &process, OpList &ops);

}  // namespace venus
