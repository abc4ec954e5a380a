#include "restore/setting_ops.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "restore/process_ops.h"

namespace venus {
namespace {

constexpr int kSetDenyWriteExecute = 65, kSetMemoryMerge = 67;  // PR_SET_MDWE, PR_SET_MEMORY_MERGE
constexpr int kOfThread = 1;                                    // IOPRIO_WHO_PROCESS
constexpr Word kTemporary = 0;

}  // namespace

void add_process_setting_ops(const ProcessImage &process, OpList &ops)
{
    if (!process.core_dump_filter.empty()) {
        std::string path = "/proc/self/coredump_filter";
        ops.call(path, SYS_openat, {word(AT_FDCWD), ops.writer().text(path), O_WRONLY | O_CLOEXEC},
                 kTemporary);
        ops.call(path, SYS_write,
                 {kTemporary, ops.writer().text(process.core_dump_filter),
                  process.core_dump_filter.size()},
                 static_cast<int64_t>(process.core_dump_filter.size()));
        ops.call(path, SYS_close, {kTemporary});
    }
    // Each bit is the command that registers.
    for (uint64_t left = process.barrier_registrations; left != 0; left &= left - 1)
        ops.call("memory barriers", SYS_membarrier, {left & -left, 0, 0});
    if (process.memory_merge)
        ops.call("memory merging", SYS_prctl, {kSetMemoryMerge, 1, 0, 0, 0});
}

void add_thread_setting_ops(const ThreadImage &thread, OpList &ops)
{
    std::string object = "thread " + std::to_string(thread.tid);
    ops.call_unjudged(object + " personality", SYS_personality, {thread.personality});
    if (thread.io_priority != 0)
        ops.call(object + " I/O priority", SYS_ioprio_set, {kOfThread, 0, word(thread.io_priority)});
    if (thread.machine_check_policy != PR_MCE_KILL_DEFAULT)
        ops.call(object + " machine checks", SYS_prctl,
                 {PR_MCE_KILL, PR_MCE_KILL_SET, word(thread.machine_check_policy), 0, 0});
    if (thread.time_stamps != PR_TSC_ENABLE)
        ops.call(object + " time stamps", SYS_prctl, {PR_SET_TSC, word(thread.time_stamps)});
}

void add_memory_rights_ops(const ProcessImage &process, OpList &ops)
{
    if (process.deny_write_execute != 0)
        ops.call("memory rights", SYS_prctl,
                 {kSetDenyWriteExecute, process.deny_write_execute, 0, 0, 0});
}

}  // namespace venus
