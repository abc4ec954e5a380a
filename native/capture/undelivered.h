// Data that a closed socket has still to deliver.
#pragma once

#include "capture/stopped_tree.h"

namespace venus {

// Nobody can look at the data of a TCP socket that no process has any more. It goes on by itself, as
// soon as the other end has room: so that gets some for a moment, and then holds the data. Where that
// does not help, the connection stays, and is refused with the sockets.
// pre: the calling thread is in the network namespace of the tree.
void let_data_arrive(const StoppedTree &tree);

}  // namespace venus
