// Which processes are in a pid namespace.
#pragma once

#include <sys/types.h>

#include "os/fd.h"

namespace venus::os {

class PidNamespace {
public:
    // That of a process, by host pid.
    explicit PidNamespace(pid_t member);

    // False when the process, zombies too, is certainly not in it, or is gone. One system call, where
    // reading /proc/PID costs tens: a node has thousands of processes that are not the sandbox's.
    // Before Linux 6.11 nothing is certain.
    bool may_hold(pid_t host_pid) const;

private:
    UniqueFd fd_;
};

}  // namespace venus::os
