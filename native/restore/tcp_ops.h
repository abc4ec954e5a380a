// TCP connections, both ends of each by TCP_REPAIR: see tcp(7) and the kernel's net/ipv4/tcp.c.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: listeners exist.
void add_tcp_ops(const ProcessPlanContext &context, OpList &ops);

}  // namespace venus
