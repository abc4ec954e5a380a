#include "capture/stopped_tree.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "os/checked.h"
#include "restore/refused.h"
#include "capture/continuation.h"
#include "os/proc.h"
#include "restore/image.h"

namespace venus {
namespace {

constexpr int kMaxRounds = 64;
// So many rounds a thread is given to come back to where the stop before this one found it.
constexpr int kPatientRounds = 48;
constexpr long kMaxPauseMs = 16;
constexpr size_t kExitSignal = 38;          // field of stat
constexpr unsigned kPidfdThread = O_EXCL;  // PIDFD_THREAD, since 6.9

// An earlier stop ended its sleep, and it has not slept again since: which call it enters again is
// known to the kernel alone, until it does.
bool is_on_its_way_to_sleep(const user_regs_struct &registers, const Continuation &plan)
{
    bool about_to_enter = static_cast<int64_t>(registers.orig_rax) < 0 &&
                          registers.rax == SYS_restart_syscall;
    return about_to_enter || plan.sleep == Continuation::Sleep::kUnknown;
}

void pause_ms(long milliseconds)
{
    timespec moment = {0, milliseconds * 1'000'000};
    nanosleep(&moment, nullptr);
}

pid_t inner_pid(const std::string &status_path)
{
    std::vector<std::string> ids = proc::words(proc::fields(proc::read_text(status_path))["NSpid"]);
    return std::stoi(ids.at(ids.size() - 1));
}

struct Listed {
    pid_t parent;
    std::vector<pid_t> living;  // threads, lowest first; none: a zombie
};

// Empty for what is gone by now.
std::optional<Listed> list_threads(pid_t pid)
{
    try {
        std::vector<std::string> stat =
            proc::stat_fields(proc::read_text(proc::path(pid, "stat")));
        Listed listed{std::stoi(stat.at(4)), proc::list_numbers(proc::path(pid, "task"))};
        if (stat.at(3) == "Z")
            std::erase_if(listed.living, [&](pid_t tid) { return is_ending(pid, tid); });
        return listed;
    } catch (const os::Error &) {
        return std::nullopt;
    }
}

bool is_in(const std::string &pid_namespace, pid_t tid)
{
    try {
        return proc::read_link(proc::path(tid, "ns/pid")) == pid_namespace;
    } catch (const os::Error &) {
        return false;  // ended, or a kernel thread
    }
}

bool share_memory(pid_t parent, pid_t child)
{
    return syscall(SYS_kcmp, parent, child, KCMP_VM, 0, 0) == 0;
}

}  // namespace

os::UniqueFd open_pidfd(pid_t tid)
{
    os::UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, tid, kPidfdThread)));
    if (!fd && errno == EINVAL)
        fd.reset(static_cast<int>(syscall(SYS_pidfd_open, tid, 0)));
    checked(fd.get(), "open", "thread " + std::to_string(tid));
    return fd;
}

pid_t StoppedProcess::first_host_tid() const
{
    return threads.empty() ? host_pid : threads.front().tracee.tid();
}

// Of a first thread that has ended most files of /proc are empty; those of any other say the same.
std::string StoppedProcess::proc_path(const std::string &name) const
{
    return proc::path(first_host_tid(), name);
}

int64_t StoppedProcess::call(int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                             uint64_t e, uint64_t f)
{
    return first().tracee.call(gadget, number, a, b, c, d, e, f);
}

void StoppedProcess::read_memory(uint64_t address, void *into, size_t bytes) const
{
    if (pread(memory.get(), into, bytes, static_cast<off_t>(address)) !=
        static_cast<ssize_t>(bytes))
        throw os::Error("read memory of", label, errno ? errno : EIO);
}

void StoppedProcess::write_memory(uint64_t address, const void *from, size_t bytes) const
{
    if (pwrite(memory.get(), from, bytes, static_cast<off_t>(address)) !=
        static_cast<ssize_t>(bytes))
        throw os::Error("write memory of", label, errno ? errno : EIO);
}

StoppedTree::StoppedTree(pid_t init_host_pid)
    : init_(init_host_pid), pid_namespace_(init_host_pid)
{
    namespace_ = proc::read_link(proc::path(init_, "ns/pid"));
    // A process that still runs can create others: repeat until a round finds nothing new.
    for (int round = 0; stop_new(round); round++) {
        if (round < kMaxRounds)
            continue;
        if (requests_.empty())
            throw os::Error("stop all processes of", "sandbox", EAGAIN);
        pid_t pid = requests_.waiting_for_children().front().pid;
        throw Refused("process " + std::to_string(inner_pid(proc::path(pid, "status"))),
                      "a child that shares its memory (vfork)",
                      "it has not executed a program yet, and nobody can look at its parent before")
            .passing();
    }
    describe();
}

StoppedTree::~StoppedTree()
{
    put_back();
}

void StoppedTree::put_back()
{
    for (StoppedProcess &process : processes) {
        try {
            if (std::exchange(process.owns_scratch, false) && !process.threads.empty())
                process.call(SYS_munmap, process.scratch, kPageBytes);
            for (StoppedThread &thread : process.threads)
                thread.tracee.put_back();
        } catch (const os::Error &) {
            // Killed meanwhile.
        }
    }
}

StoppedProcess &StoppedTree::find_process(pid_t pid)
{
    auto known = std::find_if(processes.begin(), processes.end(),
                              [&](const StoppedProcess &p) { return p.host_pid == pid; });
    if (known != processes.end())
        return *known;
    StoppedProcess process{};
    process.host_pid = pid;
    processes.push_back(std::move(process));
    return processes.back();
}

// A zombie has no ns/ links any more; its parent tells the tree.
bool StoppedTree::find_zombie(pid_t pid, pid_t parent)
{
    auto is = [](pid_t wanted) {
        return [wanted](const StoppedProcess &process) { return process.host_pid == wanted; };
    };
    auto known = std::find_if(processes.begin(), processes.end(), is(pid));
    if (known != processes.end()) {
        // Ended before any of its threads was stopped; one that is stopped stays as it is.
        if (known->zombie || !known->threads.empty())
            return false;
        return known->zombie = true;
    }
    if (parent != init_ && std::none_of(processes.begin(), processes.end(), is(parent)))
        return false;
    return find_process(pid).zombie = true;
}

bool StoppedTree::shares_memory_with_waiting(pid_t pid, pid_t parent) const
{
    const std::vector<StopRequest> &waiting = requests_.waiting_for_children();
    return std::any_of(waiting.begin(), waiting.end(), [&](const StopRequest &request) {
        return request.pid == parent && share_memory(parent, pid);
    });
}

// Asks what is not yet asked or stopped. True: there was something.
bool StoppedTree::ask_new()
{
    bool found_new = false;
    SchedulerClocks clocks;
    for (pid_t pid : proc::list_numbers("/proc")) {
        std::optional<Listed> listed =
            pid == init_ || !pid_namespace_.may_hold(pid) ? std::nullopt : list_threads(pid);
        if (!listed)
            continue;
        if (listed->living.empty()) {
            found_new |= find_zombie(pid, listed->parent);
            continue;
        }
        if (!is_in(namespace_, listed->living.back()))
            continue;
        if (shares_memory_with_waiting(pid, listed->parent)) {
            found_new = true;
            continue;
        }
        StoppedProcess &process = find_process(pid);
        process.leader_ended = listed->living.front() != pid;
        for (pid_t tid : listed->living) {
            bool have = std::any_of(process.threads.begin(), process.threads.end(),
                                    [&](StoppedThread &t) { return t.tracee.tid() == tid; });
            if (have || requests_.contains(tid))
                continue;
            requests_.ask(pid, tid, note_wait(pid, tid, clocks));
            found_new = true;  // also when it is ending: what it leaves must be seen
        }
    }
    return found_new;
}

// A thread that waits for a child which shares its memory stops only after that has gone on.
bool StoppedTree::let_children_go()
{
    size_t before = processes.size();
    for (const StopRequest &request : requests_.waiting_for_children())
        std::erase_if(processes, [&](const StoppedProcess &process) {
            if (process.zombie || process.threads.empty())
                return false;
            std::vector<std::string> stat =
                proc::stat_fields(proc::read_text(process.proc_path("stat")));
            return std::stoi(stat.at(4)) == request.pid &&
                   share_memory(request.pid, process.first_host_tid());
        });
    return processes.size() != before;
}

bool StoppedTree::stop_new(int round)
{
    bool found_new = ask_new(), let_go = false;
    for (StopRequest &stopped : requests_.take_stopped()) {
        Continuation plan = continue_from(stopped.tracee.registers(), stopped.note.channel.c_str(),
                                          false);
        if (round < kPatientRounds && is_on_its_way_to_sleep(stopped.tracee.registers(), plan)) {
            let_go = true;
            continue;
        }
        pid_t tid = stopped.tracee.tid();
        StoppedProcess &process = find_process(stopped.pid);
        if (!process.pidfd)
            process.pidfd = open_pidfd(tid);
        process.threads.push_back(
            {std::move(stopped.tracee), 0, std::move(stopped.note), monotonic_ns()});
    }
    if (!requests_.empty()) {
        let_children_go();
        let_go = true;
    }
    if (let_go)
        pause_ms(std::min<long>(round + 1, kMaxPauseMs));
    return found_new || let_go;
}

void StoppedTree::describe()
{
    // A process whose threads all ended between listing and stop is no part of the tree.
    std::erase_if(processes, [](const StoppedProcess &p) { return !p.zombie && p.threads.empty(); });
    std::map<pid_t, pid_t> inner = {{init_, 1}};
    for (StoppedProcess &process : processes) {
        process.pid = inner_pid(proc::path(process.host_pid, "status"));
        inner[process.host_pid] = process.pid;
    }
    for (StoppedProcess &process : processes) {
        describe(process);
        auto parent = inner.find(std::stoi(process.stat.at(4)));
        if (parent == inner.end())
            throw Refused(process.label, "its parent", "it is outside the sandbox");
        process.parent = parent->second;
    }
    // Init is about to reap these.
    std::erase_if(processes, [](const StoppedProcess &p) { return p.zombie && p.parent == 1; });
    put_parents_first();
}

void StoppedTree::describe(StoppedProcess &process)
{
    std::sort(process.threads.begin(), process.threads.end(),
              [&](const StoppedThread &a, const StoppedThread &b) {
                  bool a_leads = a.tracee.tid() == process.host_pid;
                  bool b_leads = b.tracee.tid() == process.host_pid;
                  return a_leads != b_leads ? a_leads : a.tracee.tid() < b.tracee.tid();
              });
    process.stat = proc::stat_fields(proc::read_text(process.proc_path("stat")));
    // Of the first thread alone; it is the process's.
    process.exit_signal = std::stoi(
        proc::stat_fields(proc::read_text(proc::path(process.host_pid, "stat"))).at(kExitSignal));
    process.name = proc::read_text(proc::path(process.host_pid, "comm"));
    process.name.pop_back();  // the newline
    process.label = process.name + " (pid " + std::to_string(process.pid) + ")";
    std::map<std::string, std::string> status =
        proc::fields(proc::read_text(process.proc_path("status")));
    auto last = [&](const char *key) { return std::stoi(proc::words(status[key]).back()); };
    process.group = last("NSpgid");
    process.session = last("NSsid");
    if (process.zombie)
        return;
    for (StoppedThread &thread : process.threads)
        thread.tid = inner_pid(
            process.proc_path("task/" + std::to_string(thread.tracee.tid()) + "/status"));
    std::string memory = process.proc_path("mem");
    process.memory.reset(checked(open(memory.c_str(), O_RDWR | O_CLOEXEC), "open", memory));
}

void StoppedTree::put_parents_first()
{
    std::vector<StoppedProcess> ordered;
    std::set<pid_t> placed = {1};
    while (!processes.empty()) {
        size_t before = processes.size();
        for (auto at = processes.begin(); at != processes.end();) {
            if (placed.contains(at->parent)) {
                placed.insert(at->pid);
                ordered.push_back(std::move(*at));
                at = processes.erase(at);
            } else {
                ++at;
            }
        }
        if (processes.size() == before)
            throw Refused(processes.front().label, "its parent", "it is outside the sandbox");
    }
    processes = std::move(ordered);
}

}  // namespace venus
