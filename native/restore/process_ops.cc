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
#include <set>

namespace venus {
namespace {

constexpr int kCreateTimersWithIds = 77;  // PR_TIMER_CREATE_RESTORE_IDS, since 6.16
constexpr size_t kMaskBytes = 8;
constexpr Word kTemporary = 0;  // the lowest free descriptor

struct KernelAction {
    uint64_t handler, flags, restorer, mask;
};

bool is_armed(const PosixTimer &timer)
{
    return timer.spec[2] != 0 || timer.spec[3] != 0;
}

// An epoll file may be open in several tables: its targets are added by the first of them.
bool is_first_owner(const TreeImage &tree, const DescriptorTable &table, uint32_t object)
{
    auto has = [&](const DescriptorTable &one) {
        return std::any_of(one.descriptors.begin(), one.descriptors.end(),
                           [&](const DescriptorImage &each) { return each.object == object; });
    };
    for (const ProcessImage &process : tree.processes) {
        if (has(process.files))
            return &process.files == &table;
        for (const ThreadImage &thread : process.threads)
            if (thread.own_descriptors && has(*thread.own_descriptors))
                return &*thread.own_descriptors == &table;
    }
    return false;
}

void add_epoll_targets(const ProcessPlanContext &context, const DescriptorTable &table, OpList &ops)
{
    std::vector<uint32_t> done;
    for (const DescriptorImage &descriptor : table.descriptors) {
        auto *epoll = std::get_if<EpollFile>(&context.tree.objects[descriptor.object]);
        if (epoll == nullptr || !is_first_owner(context.tree, table, descriptor.object) ||
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

// The kernel tells by which number a file was made asynchronous: by the first that leads to it.
void add_asynchronous_files(const ProcessPlanContext &context, const DescriptorTable &table,
                            OpList &ops)
{
    constexpr int kAsync = 020000;  // O_ASYNC
    constexpr int kKept = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME | kAsync;
    for (const FileSignal &signal : context.tree.file_signals) {
        auto leads_there = [&](const DescriptorImage &each) { return each.object == signal.object; };
        auto found = std::find_if(table.descriptors.begin(), table.descriptors.end(), leads_there);
        if ((signal.flags & kAsync) && is_first_owner(context.tree, table, signal.object))
            ops.call("signal of a file", SYS_fcntl,
                     {word(found->number), F_SETFL, word(signal.flags & kKept)});
    }
}

}  // namespace

void add_oom_ops(const ProcessImage &process, OpList &ops)
{
    std::string value = std::to_string(process.oom_score_adjustment);
    std::string path = "/proc/self/oom_score_adj";
    ops.call(path, SYS_openat,
             {word(AT_FDCWD), ops.writer().text(path), O_WRONLY | O_CLOEXEC}, kTemporary);
    ops.call(path, SYS_write, {kTemporary, ops.writer().text(value), value.size()},
             static_cast<int64_t>(value.size()));
    ops.call(path, SYS_close, {kTemporary});
}

void add_descriptor_ops(const ProcessPlanContext &context, const DescriptorTable &table,
                        OpList &ops)
{
    for (const DescriptorImage &descriptor : table.descriptors)
        ops.call("descriptor " + std::to_string(descriptor.number), SYS_dup3,
                 {word(context.descriptors.objects) + descriptor.object, word(descriptor.number),
                  descriptor.close_on_exec ? Word{O_CLOEXEC} : 0},
                 descriptor.number);
    add_epoll_targets(context, table, ops);
    add_asynchronous_files(context, table, ops);
    ops.call("objects", SYS_close_range, {word(context.descriptors.objects), ~uint32_t{0}, 0});
    // After that: closing any descriptor of a file drops the locks of the process on it.
    for (const PosixLock &lock : table.locks) {
        struct flock request{};
        request.l_type = static_cast<short>(lock.type);
        request.l_whence = SEEK_SET;
        request.l_start = static_cast<off_t>(lock.start);
        request.l_len = static_cast<off_t>(lock.length);
        ops.call("lock on descriptor " + std::to_string(lock.number), SYS_fcntl,
                 {word(lock.number), F_SETLK, ops.writer().object(request)});
    }
}

void add_working_directory_ops(const ProcessPlanContext &context, const Directories &directories,
                               OpList &ops)
{
    const std::string &current = directories.working_directory;
    std::string path = directories.working_nameless == kNoObject
                           ? current
                           : nameless_path(context.descriptors, directories.working_nameless);
    ops.call(current, SYS_chdir, {ops.writer().text(path)});
}

void add_root_directory_ops(const Directories &directories, OpList &ops)
{
    // Changes no working directory, which may lie outside.
    if (directories.root != "/")
        ops.call("root directory", SYS_chroot, {ops.writer().text(directories.root)});
    ops.call_unjudged("umask", SYS_umask, {directories.umask});  // returns the old one
}

void add_signal_reset_ops(const TreeImage &tree, const ProcessImage &process, OpList &ops)
{
    std::set<int> signals = {SIGCHLD};
    for (const ProcessImage &child : tree.processes)
        if (child.parent == process.pid && child.state == RunState::kZombie && child.exit_signal > 0)
            signals.insert(child.exit_signal);
    // Ignoring a signal for a moment drops what is queued.
    KernelAction ignore{reinterpret_cast<uint64_t>(SIG_IGN), 0, 0, 0}, standard{};
    for (int signal : signals)
        for (const KernelAction &action : {ignore, standard})
            ops.call("signal of children", SYS_rt_sigaction,
                     {word(signal), ops.writer().object(action), 0, kMaskBytes});
}

void add_signal_action_ops(const ProcessImage &process, OpList &ops)
{
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

void add_timer_ops(const ProcessImage &process, Word work_area, OpList &ops)
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
        ops.add(object, VR_STORE, {work_area, word(timer.id)});
        ops.call(object, SYS_timer_create, {word(timer.clock), writer.object(event), work_area});
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

void add_last_ops(const ProcessImage &process, bool adopts, OpList &ops)
{
    if (process.child_subreaper != adopts)
        ops.call("subreaper", SYS_prctl,
                 {PR_SET_CHILD_SUBREAPER, process.child_subreaper ? 1u : 0u, 0, 0, 0});
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
