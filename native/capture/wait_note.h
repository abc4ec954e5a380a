// What a thread waits for, read before a stop destroys it.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace venus {

struct WaitNote {
    std::string channel;          // kernel function it sleeps in, "0" when it runs
    int64_t asleep_since_ns = 0;  // CLOCK_MONOTONIC
};

// Every CPU has a scheduler clock of its own: it does not count stolen and interrupt time, so the
// distance to CLOCK_MONOTONIC differs from CPU to CPU by as much as a second.  A thread that just
// woke up has a fresh exec_start, so compare both on ourselves, on the CPU in question.
class SchedulerClocks {
public:
    SchedulerClocks();
    ~SchedulerClocks();
    SchedulerClocks(const SchedulerClocks &) = delete;

    int64_t offset_ns(int cpu);

private:
    cpu_set_t allowed_;
    std::map<int, int64_t> offsets_;
};

int64_t monotonic_ns();
// Reading another thread's state races with its end: an absent file means that it is gone.
WaitNote note_wait(pid_t host_pid, pid_t tid, SchedulerClocks &clocks);

}  // namespace venus
