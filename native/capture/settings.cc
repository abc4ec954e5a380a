#include "capture/settings.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>

#include "os/checked.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr int kBarrierRegistrations = 1 << 9;  // MEMBARRIER_CMD_GET_REGISTRATIONS
constexpr int kGetDenyWriteExecute = 66, kGetMemoryMerge = 68;  // PR_GET_MDWE, PR_GET_MEMORY_MERGE
constexpr int kOfThread = 1;  // IOPRIO_WHO_PROCESS

// As sched_getattr(2) gives it; what an older kernel does not know stays 0.
struct SchedulingAttributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

SchedulingAttributes scheduling_of(pid_t tid)
{
    SchedulingAttributes attributes{};
    checked(syscall(SYS_sched_getattr, tid, &attributes, sizeof attributes, 0), "get scheduling of",
            "thread " + std::to_string(tid));
    return attributes;
}

int64_t required(int64_t result, const char *operation, const std::string &object)
{
    if (result < 0)
        throw os::Error(operation, object, static_cast<int>(-result));
    return result;
}

}  // namespace

void capture_process_settings(StoppedProcess &process, pid_t init_host_pid, ProcessImage &image)
{
    std::string filter = proc::read_text(process.proc_path("coredump_filter"));
    if (filter != proc::read_text(proc::path(init_host_pid, "coredump_filter")))
        image.core_dump_filter = "0x" + filter;
    auto ask = [&](int64_t number, uint64_t a, const char *operation) {
        return static_cast<uint64_t>(required(process.call(number, a), operation, process.label));
    };
    image.barrier_registrations =
        ask(SYS_membarrier, kBarrierRegistrations, "get the barriers of");
    image.deny_write_execute = ask(SYS_prctl, kGetDenyWriteExecute, "get memory rights of");
    // -EINVAL: a kernel without same-page merging.
    image.memory_merge = process.call(SYS_prctl, kGetMemoryMerge) == 1;
}

void capture_thread_settings(StoppedProcess &process, StoppedThread &thread, ThreadImage &image)
{
    pid_t tid = thread.tracee.tid();
    std::string label = process.label + " thread " + std::to_string(thread.tid);
    std::string base = process.proc_path("task/" + std::to_string(tid) + "/personality");
    image.personality = static_cast<uint32_t>(std::stoul(proc::read_text(base), nullptr, 16));
    image.io_priority = static_cast<int>(
        checked(syscall(SYS_ioprio_get, kOfThread, tid), "get the I/O priority of", label));
    SchedulingAttributes attributes = scheduling_of(tid);
    image.scheduling_flags = attributes.flags;
    // The slice that everybody has says nothing.
    if (attributes.runtime != scheduling_of(0).runtime)
        image.slice_ns = attributes.runtime;
    image.machine_check_policy = static_cast<int>(
        required(thread.tracee.call(process.gadget, SYS_prctl, PR_MCE_KILL_GET),
                 "get the policy for machine checks of", label));
    required(thread.tracee.call(process.gadget, SYS_prctl, PR_GET_TSC, process.scratch),
             "get the use of time stamps of", label);
    process.read_memory(process.scratch, &image.time_stamps, sizeof image.time_stamps);
}

}  // namespace venus
