// Sockets with their names, connections and queues.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: no descriptor below the objects is open.
void add_socket_ops(const ProcessPlanContext &context, OpList &ops);

}  // namespace venus
