// Which tables of the kernel processes and threads have in common (clone(2), kcmp(2)).
#pragma once

#include <sys/types.h>

#include "capture/stopped_tree.h"
#include "restore/image.h"

namespace venus {

// Whether two threads, by their host tids, have the same table.
bool have_same(Table table, pid_t a, pid_t b);

// Whether the thread has a list of what to give back to semaphores.
// pre: find_shared_tables() was called on this thread.
bool has_semaphore_undo(pid_t host_tid);

// For each process of the tree what ProcessImage::shared_with says. Throws Refused where a thread
// shares a table of its own with somebody else.
std::vector<std::array<uint32_t, kTables>> find_shared_tables(const StoppedTree &tree);

}  // namespace venus
