// Who of a tree holds which sockets.
#pragma once

#include <cstdint>
#include <map>

#include "capture/stopped_tree.h"

namespace venus {

// Inode → a descriptor of the process.
std::map<uint64_t, int> held_sockets(const StoppedProcess &process);
// Empty: no process of the tree has it.
os::UniqueFd duplicate_socket(const StoppedTree &tree, uint64_t inode);

}  // namespace venus
