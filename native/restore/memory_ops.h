// Operations that rebuild one address space.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: the process has no memory but the window, and no descriptor below the objects.
void add_memory_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops);

}  // namespace venus
