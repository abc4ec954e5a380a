#include "restore/process_ops.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>

namespace venus {
namespace {

constexpr int kCreateTimersWithIds = 77;  // PR_TIMER_CREATE_RESTORE_IDS, since 6.16
constexpr size_t kMaskBytes = 8;

struct KernelAction {
    uint64_t handler, flags, restorer, mask;
};

bool is_armed(const PosixTimer &timer)
{
    return timer.spec[2] != 0 || timer.spec[3] != 0;
}

void add_epoll_targets(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops)
{
    std::vector<uint32_t> done;
    for (const DescriptorImage &descriptor : process.descriptors) {
        auto *epoll = std::get_if<EpollFile>(&context.tree.objects[descriptor.object]);
        if (epoll == nullptr || !first_descriptor(context.tree, process, descriptor.object) ||
            std::find(done.begin(), done.end(), descriptor.object) != done.end())
            continue;
        done.push_back(descriptor.object);
        for (const EpollTarget &target : epoll->targets) {
            struct epoll_event event{};
            event.events = target.events;
            event.data.u64 = target.data;
            ops.call("epoll target " + std::to_string(target.number), SYS_epoll_ctl,
                     {word(descriptor.number), EPOLL_CTL_ADD, word(target.number),
                      ops.writer().object(event)});
        }
    }
}

}  // namespace

const DescriptorImage *first_descriptor(const TreeImage &tree, const ProcessImage &process,
                                        uint32_t object)
{
    for (const ProcessImage &other : tree.processes)
        for (const DescriptorImage &descriptor : other.descriptors)
            if (descriptor.object == object)
                return &other == &process ? &descriptor : nullptr;
    return nullptr;
}

void add_descriptor_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops)
{
    for (const DescriptorImage &descriptor : process.descriptors)
        ops.call("descriptor " + std::to_string(descriptor.number), SYS_dup3,
                 {word(context.descriptors.objects) + descriptor.object, word(descriptor.number),
                  descriptor.close_on_exec ? Word{O_CLOEXEC} : 0},
                 descriptor.number);
    add_epoll_targets(context, process, ops);
    ops.call("objects", SYS_close_range, {word(context.descriptors.objects), ~uint32_t{0}, 0});
    // After that: closing any descriptor of a file drops the locks of the process on it.
    for (const PosixLock &lock : process.locks) {
        struct flock request{};
        request.l_type = static_cast<short>(lock.type);
        request.l_whence = SEEK_SET;
        request.l_start = static_cast<off_t>(lock.start);
        request.l_len = static_cast<off_t>(lock.length);
        ops.call("lock on descriptor " + std::to_string(lock.number), SYS_fcntl,
                 {word(lock.number), F_SETLK, ops.writer().object(request)});
    }
    ops.call(process.working_directory, SYS_chdir, {ops.writer().text(process.working_directory)});
    ops.call_unjudged("umask", SYS_umask, {process.umask});  // returns the old one
}

void add_signal_action_ops(const ProcessImage &process, OpList &ops)
{
    // Children that were stopped or ended while the tree was rebuilt have sent SIGCHLD: ignoring
    // it for a moment drops what is queued.
    KernelAction ignore{reinterpret_cast<uint64_t>(SIG_IGN), 0, 0, 0}, standard{};
    ops.call("SIGCHLD", SYS_rt_sigaction, {SIGCHLD, ops.writer().object(ignore), 0, kMaskBytes});
    ops.call("SIGCHLD", SYS_rt_sigaction, {SIGCHLD, ops.writer().object(standard), 0, kMaskBytes});
    for (const SignalAction &action : process.actions) {
        KernelAction wanted{action.handler, action.flags, action.restorer, action.mask};
        ops.call("action of signal " + std::to_string(action.number), SYS_rt_sigaction,
                 {word(action.number), ops.writer().object(wanted), 0, kMaskBytes});
    }
}

void add_limit_ops(const ProcessImage &process, OpList &ops)
{
    for (size_t which = 0; which < process.limits.size(); which++)
        ops.call("limit " + std::to_string(which), SYS_prlimit64,
                 {0, which, ops.writer().object(process.limits[which]), 0});
}

void add_timer_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    if (process.posix_timers.empty())
        return;
    ops.call("timer ids", SYS_prctl, {kCreateTimersWithIds, 1, 0, 0, 0});
    for (const PosixTimer &timer : process.posix_timers) {
        std::string object = "timer " + std::to_string(timer.id);
        struct {
            uint64_t value;
            int32_t signal, notify, thread, padding[11];
        } event{timer.value, timer.signal, timer.notify, timer.thread, {}};
        static_assert(sizeof event == sizeof(sigevent));
        // The kernel reads the wanted id from where it writes the id.
        Word id = context.window.work_area();
        ops.add(object, VR_STORE, {id, word(timer.id)});
        ops.call(object, SYS_timer_create, {word(timer.clock), writer.object(event), id});
    }
    ops.call("timer ids", SYS_prctl, {kCreateTimersWithIds, 0, 0, 0, 0});
}

bool has_armed_timers(const ProcessImage &process)
{
    return !process.interval_timers.empty() ||
           std::any_of(process.posix_timers.begin(), process.posix_timers.end(), is_armed);
}

void add_timer_start_ops(const ProcessImage &process, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    for (const IntervalTimer &timer : process.interval_timers)
        ops.call("interval timer", SYS_setitimer,
                 {word(timer.which), writer.data(timer.value, sizeof timer.value), 0});
    for (const PosixTimer &timer : process.posix_timers)
        if (is_armed(timer))
            ops.call("timer " + std::to_string(timer.id), SYS_timer_settime,
                     {word(timer.id), 0, writer.data(timer.spec, sizeof timer.spec), 0});
}

void add_last_ops(const ProcessImage &process, OpList &ops)
{
    if (process.child_subreaper)
        ops.call("subreaper", SYS_prctl, {PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0});
    if (process.thp_disabled)
        ops.call("huge pages", SYS_prctl, {PR_SET_THP_DISABLE, 1, 0, 0, 0});
    ops.call("dumpable", SYS_prctl, {PR_SET_DUMPABLE, process.dumpable ? 1u : 0u, 0, 0, 0});
}

void add_seccomp_ops(const ProcessImage &process, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    for (const Bytes &filter : process.seccomp_filters) {
        struct sock_fprog program{};
        program.len = static_cast<unsigned short>(filter.size() / sizeof(sock_filter));
        program.filter = reinterpret_cast<sock_filter *>(writer.data(filter));
        ops.call("seccomp filter", SYS_seccomp,
                 {SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, writer.object(program)});
    }
}

}  // namespace venus
