// The seccomp filter by which a fork answers calls that act differently on pool memory.  Pure.
//
// Where the original had anonymous memory a fork has private mappings of the pool: discarding them
// would bring the snapshot's bytes back instead of zeroes, growing them would show the pool behind
// them.  The filter hands madvise() and mremap() of such addresses to sandbox-init
// (kernel_helpers/init/pool_calls.c), which makes the memory anonymous first.  It is the first
// filter of every process of a fork, so a program's own filters come on top of it as they did.
#pragma once

#include "restore/image.h"

namespace venus {

// Empty when no process of the tree has anonymous memory in the pool.  Addresses are rounded
// outward and near ranges joined: init looks at what really is there.
Bytes make_pool_filter(const TreeImage &tree);
bool is_pool_filter(const Bytes &program);

}  // namespace venus
