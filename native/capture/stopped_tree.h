// All processes of one pid namespace except its init, stopped at one moment.
// While the object lives nothing in the sandbox runs; its destructor lets everything go on.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "capture/stop_requests.h"
#include "memory/page_runs.h"
#include "os/fd.h"
#include "os/pid_namespace.h"
#include "os/tracee.h"

namespace venus {

struct StoppedThread {
    Tracee tracee;
    pid_t tid;  // inside the sandbox
    WaitNote note;
    int64_t stopped_at_ns;  // CLOCK_MONOTONIC
};

struct StoppedProcess {
    pid_t host_pid;
    pid_t pid, parent, group, session;  // inside the sandbox
    int exit_signal = 0;
    std::string name;                   // of its first thread
    std::string label;                  // "python3 (pid 7)"
    bool zombie = false;
    bool leader_ended = false;           // while other threads run on
    std::vector<StoppedThread> threads;  // those that live, the leader first
    os::UniqueFd pidfd, memory;
    uint64_t gadget = 0;   // address of a syscall instruction
    uint64_t scratch = 0;  // a page mapped for injected calls, until the end of the capture
    bool owns_scratch = false;  // not of another process that has the same memory
    std::vector<std::string> stat;
    // Of the plan that made it: where threads may stand, which of them have left (plan_remains.h).
    std::vector<PageRun> plan_code, plan_marks;
    std::vector<uint64_t> left_marks;
    bool keeps_plan = true;

    // Any that lives: to the kernel it stands for its process.
    StoppedThread &first() { return threads.front(); }
    pid_t first_host_tid() const;
    std::string proc_path(const std::string &name) const;
    // Injected into the first thread. Negative errno on failure.
    int64_t call(int64_t number, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0,
                 uint64_t e = 0, uint64_t f = 0);
    void read_memory(uint64_t address, void *into, size_t bytes) const;
    void write_memory(uint64_t address, const void *from, size_t bytes) const;
};

// For a thread that is not the first of its process too, where the kernel knows that.
os::UniqueFd open_pidfd(pid_t tid);

class StoppedTree {
public:
    explicit StoppedTree(pid_t init_host_pid);
    ~StoppedTree();
    StoppedTree(const StoppedTree &) = delete;

    // Nothing that the capture put into the processes is left in them; they stay stopped.
    void put_back();

    std::vector<StoppedProcess> processes;  // parents before children
    pid_t init() const { return init_; }

    // These run again, until stop(). False: there is none such.
    // pre: no call was injected yet.
    bool let_go_on(const std::function<bool(const StoppedProcess &)> &chosen);
    // What runs, and what it has started.
    void stop();

private:
    bool stop_new(int round);
    bool ask_new();
    void find_zombie(pid_t pid, pid_t parent);
    std::set<pid_t> zombies() const;
    StoppedProcess &find_process(pid_t pid);
    bool shares_memory_with_waiting(pid_t pid, pid_t parent) const;
    bool let_children_go();
    void describe();
    void describe(StoppedProcess &process);
    void put_parents_first();

    pid_t init_;
    os::PidNamespace pid_namespace_;
    std::string namespace_;
    StopRequests requests_;
};

}  // namespace venus
