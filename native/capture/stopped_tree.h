// All processes of one pid namespace except its init, stopped at one moment.
// While the object lives nothing in the sandbox runs; its destructor lets everything go on.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "memory/page_runs.h"
#include "os/fd.h"
#include "os/pid_namespace.h"
#include "os/tracee.h"

namespace venus {

// What a thread waited for, read before the stop destroyed it.
struct WaitNote {
    std::string channel;         // kernel function it sleeps in, "0" when it runs
    int64_t asleep_since_ns = 0;  // CLOCK_MONOTONIC
};

struct StoppedThread {
    Tracee tracee;
    pid_t tid;  // inside the sandbox
    WaitNote note;
    int64_t stopped_at_ns;  // CLOCK_MONOTONIC
};

struct StoppedProcess {
    pid_t host_pid;
    pid_t pid, parent, group, session;  // inside the sandbox
    std::string label;                  // "python3 (pid 7)"
    bool zombie = false;
    std::vector<StoppedThread> threads;  // the leader first
    os::UniqueFd pidfd, memory;
    uint64_t gadget = 0;   // address of a syscall instruction
    uint64_t scratch = 0;  // a page mapped for injected calls, until the end of the capture
    std::vector<std::string> stat;
    // Of the plan that made it: where threads may stand, which of them have left (plan_remains.h).
    std::vector<PageRun> plan_code, plan_marks;
    std::vector<uint64_t> left_marks;

    StoppedThread &leader() { return threads.front(); }
    std::string proc_path(const std::string &name) const;
    // Injected into the leader. Negative errno on failure.
    int64_t call(int64_t number, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0,
                 uint64_t e = 0, uint64_t f = 0);
    void read_memory(uint64_t address, void *into, size_t bytes) const;
    void write_memory(uint64_t address, const void *from, size_t bytes) const;
};

class StoppedTree {
public:
    explicit StoppedTree(pid_t init_host_pid);
    ~StoppedTree();
    StoppedTree(const StoppedTree &) = delete;

    // Nothing that the capture put into the processes is left in them; they stay stopped.
    void put_back();

    std::vector<StoppedProcess> processes;  // parents before children
    pid_t init() const { return init_; }

private:
    bool stop_new(int round);
    void describe();

    pid_t init_;
    os::PidNamespace pid_namespace_;
    std::string namespace_;
};

}  // namespace venus
