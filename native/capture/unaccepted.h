// Connections that nobody has accepted yet.
#pragma once

#include "capture/stopped_tree.h"

namespace venus {

// Data in them can be read only by who accepts them, and so can the end of one that was closed. So
// whoever can accept goes on for a moment, while all others stand still: nothing new arrives, and
// what waits is accepted. Where that does not help, they stay, and are refused with the sockets.
// pre: the calling thread is in the network namespace of the tree.
void let_connections_be_accepted(StoppedTree &tree);

}  // namespace venus
