// How a stopped thread goes on. Pure.
//
// A stop interrupts system calls.  Most are entered again by rewinding the instruction pointer;
// those that sleep for a relative time have a remainder which lives only in the kernel, so a fork
// enters them again with the remaining time.
#pragma once

#include <sys/user.h>

#include <cstdint>
#include <optional>

namespace venus {

struct Continuation {
    user_regs_struct original;  // for the program that was stopped
    user_regs_struct fork;
    // The fork's call sleeps for a relative time; which argument carries it, and how.
    enum class Sleep { kNone, kTimespec, kMilliseconds, kUnknown } sleep = Sleep::kNone;
    unsigned argument = 0;
};

// `channel`: the kernel function that the thread slept in before the stop.
// `signal_waits`: an unblocked signal is pending, so a call that returned EINTR did so for it.
Continuation continue_from(const user_regs_struct &at_stop, const char *channel, bool signal_waits);

}  // namespace venus
