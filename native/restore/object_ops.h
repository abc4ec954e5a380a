// Operations by which the coordinator makes the open files of the whole tree, once each.
// Every process inherits them under high numbers and takes those it needs.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: no descriptor below context.descriptors.objects is open.
void add_object_ops(const ProcessPlanContext &context, OpList &ops);

// Sets what the timerfds among them had left; their time runs from then on.
void add_timer_file_ops(const ProcessPlanContext &context, OpList &ops);

}  // namespace venus
