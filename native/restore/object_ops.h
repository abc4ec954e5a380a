// Operations by which the coordinator makes the open files of the whole tree, once each.
// Every process inherits them under high numbers and takes those it needs.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: no descriptor below context.descriptors.objects is open.
void add_object_ops(const ProcessPlanContext &context, OpList &ops);

// Whether there is work for the three below and for add_file_signal_ops.
bool has_late_files(const TreeImage &tree);
// Files of /proc that speak of processes or threads of the tree. When all of these are there the
// coordinator opens them, and whoever needs them fetches them from it.
void open_files_of_processes(const ProcessPlanContext &context, OpList &ops);
// pre: no descriptor below context.descriptors.objects is open.
void fetch_files_of_processes(const ProcessPlanContext &context, const DescriptorTable &table,
                              OpList &ops);

// When all that they can say is as it will be: what is found at an offset is kept to be read.
void seek_files_of_processes(const ProcessPlanContext &context, OpList &ops);

// For the coordinator, when the processes and threads are there that get the signals.
void add_file_signal_ops(const ProcessPlanContext &context, OpList &ops);

// Sets what the timerfds among them had left; their time runs from then on.
void add_timer_file_ops(const ProcessPlanContext &context, OpList &ops);

}  // namespace venus
