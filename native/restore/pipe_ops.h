// Pipes and FIFOs with the data in them.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

void add_pipe_ops(const ProcessPlanContext &context, OpList &ops);
// The file at descriptor 0 moves to `number`.
void keep_opened(const std::string &object, OpList &ops, Word number);

}  // namespace venus
