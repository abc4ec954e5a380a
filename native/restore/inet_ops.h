// Internet sockets: made by the coordinator, which may do in the sandbox's network what its
// processes may not.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

void add_inet_ops(const ProcessPlanContext &context, OpList &ops);

// The object's own descriptor gets what is at `from`.
void take_socket(const ProcessPlanContext &context, const std::string &name, Word from,
                 uint32_t object, OpList &ops);
void set_socket_options(const std::string &name, const std::vector<SocketOption> &options,
                        Word number, OpList &ops);
// What fcntl() sets.
void set_socket_flags(const std::string &name, int flags, Word number, OpList &ops);

}  // namespace venus
