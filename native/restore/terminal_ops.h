// Pseudo-terminals under their old index, with their settings.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

void add_terminal_ops(const ProcessPlanContext &context, OpList &ops);
// In the leader of a session, before the objects are closed.
void add_controlling_terminal_ops(const ProcessImage &process, OpList &ops);
// When every group of the session exists.
void add_foreground_ops(const ProcessImage &process, OpList &ops);

}  // namespace venus
