// System V shared memory, semaphores and message queues, with the ids that they had.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

void add_system_v_ops(const ProcessPlanContext &context, OpList &ops);
// Of segments that go with their last process. pre: all processes have attached theirs.
void add_system_v_removal_ops(const ProcessPlanContext &context, OpList &ops);
// pre: the process has its capabilities still.
void add_semaphore_undo_ops(const ProcessPlanContext &context, const std::vector<SemaphoreUndo> &list,
                            OpList &ops);

}  // namespace venus
