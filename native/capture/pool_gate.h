// Keeps the init of a fork from stopping threads that are about to be captured.
//
// Init answers calls on pool memory by tracing the thread that made them (kernel_helpers/init/
// pool_calls.h).  A thread that it is at work on cannot be captured, and one that waits for its answer
// cannot be stopped.  While the gate is held init takes no new call, and calls that it has not taken
// can be stopped as any other.
#pragma once

#include <sys/types.h>

#include <vector>

#include "memory/extent.h"
#include "os/fd.h"

namespace venus {

class PoolGate {
public:
    // Waits until init has finished what it is at. Throws os::Error (EAGAIN) when that does not end.
    explicit PoolGate(pid_t init_host_pid);

    // Of the template that the sandbox was forked from, whoever still has it.
    struct Pool {
        std::vector<FileIdentity> extents;  // whose pages stand for anonymous memory
        std::vector<FileIdentity> plans;
    };
    // Empty when no memory of a template is in the sandbox.
    Pool pool() const;

private:
    os::UniqueFd file_;  // its lock goes with it, also when this process dies
};

}  // namespace venus
