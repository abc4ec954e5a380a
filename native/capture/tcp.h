// TCP connections, of which both ends are in the sandbox.
#pragma once

#include "capture/descriptors.h"

namespace venus {

// pre: the socket is neither fresh nor listening. Nothing of its state is changed.
TcpEnd capture_tcp_end(const SeenFile &seen, int state);
bool has_ended(const SeenFile &seen);
// Joins the ends, when all of them are known.
void finish_tcp(CaptureState &state);

}  // namespace venus
