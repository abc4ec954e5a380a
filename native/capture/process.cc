#include "capture/process.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <map>

#include "capture/id_map.h"
#include "capture/nameless_files.h"
#include "capture/paths.h"
#include "capture/proc_lines.h"
#include "os/checked.h"
#include "restore/pool_filter.h"
#include "restore/refused.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr int kTerminalSlaveMajor = 136;
constexpr uint64_t kMaskBytes = 8;

struct KernelAction {  // struct sigaction as rt_sigaction(2) has it on x86-64
    uint64_t handler, flags, restorer, mask;
};

int64_t require(const StoppedProcess &process, int64_t result, const char *operation)
{
    if (result < 0)
        throw os::Error(operation, process.label, static_cast<int>(-result));
    return result;
}

void capture_actions(StoppedProcess &process, std::map<std::string, std::string> &status,
                     ProcessImage &image)
{
    uint64_t set = std::stoull(status["SigCgt"], nullptr, 16) |
                   std::stoull(status["SigIgn"], nullptr, 16) | uint64_t{1} << (SIGCHLD - 1);
    for (int number = 1; number <= 64; number++) {
        if ((set & uint64_t{1} << (number - 1)) == 0 || number == SIGKILL || number == SIGSTOP)
            continue;
        require(process,
                process.call(SYS_rt_sigaction, static_cast<uint64_t>(number), 0, process.scratch,
                             kMaskBytes),
                "get a signal action of");
        KernelAction action;
        process.read_memory(process.scratch, &action, sizeof action);
        if (action.handler != 0 || action.flags != 0 || action.mask != 0)
            image.actions.push_back(
                {number, action.handler, action.flags, action.restorer, action.mask});
    }
}

void capture_timers(StoppedProcess &process, StoppedTree &tree, ProcessImage &image)
{
    for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
        IntervalTimer timer{which, {}};
        require(process,
                process.call(SYS_getitimer, static_cast<uint64_t>(which), process.scratch),
                "get an interval timer of");
        process.read_memory(process.scratch, timer.value, sizeof timer.value);
        if (timer.value[2] != 0 || timer.value[3] != 0)
            image.interval_timers.push_back(timer);
    }
    for (const PosixTimerLines &lines : posix_timer_lines(proc::read_text(process.proc_path("timers")))) {
        PosixTimer timer{};
        timer.id = lines.id;
        timer.signal = lines.signal;
        timer.value = lines.value;
        timer.clock = lines.clock;
        timer.notify = lines.notify;
        if (lines.host_tid != 0) {
            timer.notify |= SIGEV_THREAD_ID;
            for (const StoppedProcess &other : tree.processes)
                for (const StoppedThread &thread : other.threads)
                    if (thread.tracee.tid() == lines.host_tid)
                        timer.thread = thread.tid;
        }
        require(process,
                process.call(SYS_timer_gettime, static_cast<uint64_t>(timer.id), process.scratch),
                "get a timer of");
        process.read_memory(process.scratch, timer.spec, sizeof timer.spec);
        image.posix_timers.push_back(timer);
    }
}

void capture_terminal(const StoppedProcess &process, StoppedTree &tree, ProcessImage &image)
{
    unsigned long device = std::stoul(process.stat.at(7));
    if (device == 0)
        return;
    unsigned major = (device >> 8) & 0xfff, minor = (device & 0xff) | ((device >> 12) & 0xfff00);
    if (major != kTerminalSlaveMajor)
        throw Refused(process.label, "its controlling terminal", "it is not a pty");
    if (process.pid != process.session)
        return;
    image.controlling_terminal = static_cast<int>(minor);
    pid_t foreground = std::stoi(process.stat.at(8));
    for (const StoppedProcess &other : tree.processes)
        if (std::stoi(other.stat.at(5)) == foreground)
            image.foreground_group = other.group;
}

void capture_seccomp(StoppedProcess &process, std::map<std::string, std::string> &status,
                     ProcessImage &image)
{
    if (status["Seccomp"] == "0")
        return;
    if (status["Seccomp"] != "2")
        throw Refused(process.label, "seccomp", "strict mode is not supported");
    std::vector<Bytes> filters = process.first().tracee.seccomp_filters();
    for (StoppedThread &thread : process.threads)
        if (&thread != &process.first() && thread.tracee.seccomp_filters() != filters)
            throw Refused(process.label, "seccomp", "its threads have different filters");
    // A fork's own comes from the plan again. A program cannot put one like it below those that
    // the sandbox gives it.
    if (!filters.empty() && is_pool_filter(filters.front()))
        filters.erase(filters.begin());
    if (!filters.empty() && status["NoNewPrivs"] != "1")
        throw Refused(process.label, "seccomp", "a filter without no_new_privs is not supported");
    image.seccomp_filters = std::move(filters);
}

// Asks on behalf of the parent, without taking the report away from it.
bool stop_unseen(const StoppedProcess &process, StoppedTree &tree)
{
    for (StoppedProcess &parent : tree.processes) {
        if (parent.pid != process.parent)
            continue;
        siginfo_t info{};
        parent.write_memory(parent.scratch, &info, sizeof info);
        require(parent,
                parent.call(SYS_waitid, P_PID, static_cast<uint64_t>(process.pid), parent.scratch,
                            WSTOPPED | WNOHANG | WNOWAIT | __WALL, 0),
                "ask for stopped children of");
        parent.read_memory(parent.scratch, &info, sizeof info);
        return info.si_pid != 0;
    }
    return false;
}

}  // namespace

void map_credentials(const StoppedProcess &process, Credentials &credentials)
{
    IdMap users(proc::read_text(process.proc_path("uid_map")));
    IdMap groups(proc::read_text(process.proc_path("gid_map")));
    auto map = [&](const IdMap &ids, uint32_t &id) {
        std::optional<uint32_t> inner = ids.inner(id);
        if (!inner)
            throw Refused(process.label, "id " + std::to_string(id),
                          "it has no name in the sandbox's user namespace");
        id = *inner;
    };
    for (uint32_t &id : credentials.uid)
        map(users, id);
    for (uint32_t &id : credentials.gid)
        map(groups, id);
    for (uint32_t &id : credentials.groups)
        map(groups, id);
}

Directories capture_directories(const StoppedProcess &process, const StoppedThread &thread,
                                CaptureState &state)
{
    std::string task = process.proc_path("task/" + std::to_string(thread.tracee.tid()) + "/");
    Directories found;
    found.umask = static_cast<uint32_t>(
        std::stoul(proc::fields(proc::read_text(task + "status"))["Umask"], nullptr, 8));
    std::string root = task + "root", current = task + "cwd";
    found.root = path_in_sandbox(process, state.init, root, proc::read_link(root));
    found.working_directory = proc::read_link(current);
    struct stat status;
    checked(stat(current.c_str(), &status), "stat", current);
    if (is_reachable(state.init, found.working_directory, status))
        return found;
    // A thread with a directory of its own has no descriptors that it could take it from.
    std::optional<uint32_t> nameless;
    if (&thread == &process.threads.front())
        nameless = nameless_file(process, current, found.working_directory, false, state);
    if (!nameless)
        throw Refused(process.label, found.working_directory, "its name no longer leads to it");
    found.working_nameless = *nameless;
    return found;
}

void capture_process(StoppedProcess &process, StoppedTree &tree, ProcessImage &image)
{
    std::map<std::string, std::string> status =
        proc::fields(proc::read_text(process.proc_path("status")));
    image.state = process.first().tracee.in_group_stop() ? RunState::kStopped : RunState::kRunning;
    if (image.state == RunState::kStopped)
        image.stop_unseen = stop_unseen(process, tree);
    image.pending_signals = process.first().tracee.pending(true);
    capture_actions(process, status, image);
    capture_timers(process, tree, image);
    capture_terminal(process, tree, image);
    capture_seccomp(process, status, image);

    image.limits = proc::limits(proc::read_text(process.proc_path("limits")));
    image.oom_score_adjustment = std::stoi(proc::read_text(process.proc_path("oom_score_adj")));

    int subreaper = 0;
    require(process, process.call(SYS_prctl, PR_GET_CHILD_SUBREAPER, process.scratch),
            "get the subreaper state of");
    process.read_memory(process.scratch, &subreaper, sizeof subreaper);
    image.child_subreaper = subreaper != 0;
    image.dumpable = require(process, process.call(SYS_prctl, PR_GET_DUMPABLE), "get dumpable of") == 1;
    image.thp_disabled =
        require(process, process.call(SYS_prctl, PR_GET_THP_DISABLE), "get thp state of") != 0;
}

}  // namespace venus
