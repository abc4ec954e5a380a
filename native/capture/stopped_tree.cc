#include "capture/stopped_tree.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <map>
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

int64_t monotonic_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

int64_t scheduler_time_ns(const std::string &sched_path)
{
    // "se.exec_start : 850158.325597": milliseconds of the scheduler's clock.
    std::string text = proc::read_text(sched_path);
    size_t at = text.find("se.exec_start");
    if (at == std::string::npos)
        return -1;
    size_t colon = text.find(':', at);
    return static_cast<int64_t>(std::stod(text.substr(colon + 1)) * 1e6);
}

// Every CPU has a scheduler clock of its own: it does not count stolen and interrupt time, so the
// distance to CLOCK_MONOTONIC differs from CPU to CPU by as much as a second.  A thread that just
// woke up has a fresh exec_start, so compare both on ourselves, on the CPU in question.
class SchedulerClocks {
public:
    SchedulerClocks() { sched_getaffinity(0, sizeof allowed_, &allowed_); }
    ~SchedulerClocks() { sched_setaffinity(0, sizeof allowed_, &allowed_); }
    SchedulerClocks(const SchedulerClocks &) = delete;

    int64_t offset_ns(int cpu)
    {
        auto known = offsets_.find(cpu);
        if (known == offsets_.end())
            known = offsets_.emplace(cpu, measure(cpu)).first;
        return known->second;
    }

private:
    static int64_t measure(int cpu)
    {
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET(cpu, &only);
        sched_setaffinity(0, sizeof only, &only);
        timespec moment = {0, 1000};
        nanosleep(&moment, nullptr);
        int64_t own = scheduler_time_ns("/proc/thread-self/sched");
        return own < 0 ? 0 : monotonic_ns() - own;
    }

    cpu_set_t allowed_;
    std::map<int, int64_t> offsets_;
};

// Reading another thread's state races with its end: an absent file means that it is gone.
WaitNote note_wait(pid_t host_pid, pid_t tid, SchedulerClocks &clocks)
{
    constexpr size_t kProcessor = 39;
    std::string base = proc::path(host_pid, "task/" + std::to_string(tid) + "/");
    try {
        WaitNote note;
        note.channel = proc::read_text(base + "wchan");
        int64_t since = scheduler_time_ns(base + "sched");
        int cpu = std::stoi(proc::stat_fields(proc::read_text(base + "stat")).at(kProcessor));
        note.asleep_since_ns = since < 0 ? 0 : since + clocks.offset_ns(cpu);
        return note;
    } catch (const os::Error &) {
        return {};
    }
}

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

// The kernel says EPERM of a thread that has ended and is not gone yet, as it does of one that
// another process traces.
bool is_ending(pid_t pid, pid_t tid)
{
    try {
        std::string path = proc::path(pid, "task/" + std::to_string(tid) + "/stat");
        std::string state = proc::stat_fields(proc::read_text(path)).at(3);
        return state == "Z" || state == "X";
    } catch (const os::Error &) {
        return true;
    }
}

}  // namespace

std::string StoppedProcess::proc_path(const std::string &name) const
{
    return proc::path(host_pid, name);
}

int64_t StoppedProcess::call(int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                             uint64_t e, uint64_t f)
{
    return leader().tracee.call(gadget, number, a, b, c, d, e, f);
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
    for (int round = 0; stop_new(round); round++)
        if (round == kMaxRounds)
            throw os::Error("stop all processes of", "sandbox", EAGAIN);
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
            if (process.scratch != 0 && !process.threads.empty())
                process.call(SYS_munmap, std::exchange(process.scratch, 0), kPageBytes);
            for (StoppedThread &thread : process.threads)
                thread.tracee.put_back();
        } catch (const os::Error &) {
            // Killed meanwhile.
        }
    }
}

bool StoppedTree::stop_new(int round)
{
    bool found_new = false, let_go = false;
    SchedulerClocks clocks;
    for (pid_t pid : proc::list_numbers("/proc")) {
        if (pid == init_ || !pid_namespace_.may_hold(pid))
            continue;
        std::string state;
        std::vector<std::string> stat;
        try {
            stat = proc::stat_fields(proc::read_text(proc::path(pid, "stat")));
        } catch (const os::Error &) {
            continue;  // ended
        }
        bool zombie = stat.at(3) == "Z";
        auto known = std::find_if(processes.begin(), processes.end(),
                                  [&](const StoppedProcess &p) { return p.host_pid == pid; });
        if (zombie) {
            // A zombie has no ns/ links any more; its NSpid tells the depth, its parent the tree.
            if (known != processes.end()) {
                // Ended before any of its threads was stopped; one that is stopped stays as it is.
                if (!known->zombie && known->threads.empty())
                    known->zombie = found_new = true;
                continue;
            }
            pid_t parent = std::stoi(stat.at(4));
            bool ours = parent == init_ ||
                        std::any_of(processes.begin(), processes.end(),
                                    [&](const StoppedProcess &p) { return p.host_pid == parent; });
            if (!ours)
                continue;
            StoppedProcess process{};
            process.host_pid = pid;
            process.zombie = true;
            processes.push_back(std::move(process));
            found_new = true;
            continue;
        }
        try {
            if (proc::read_link(proc::path(pid, "ns/pid")) != namespace_)
                continue;
        } catch (const os::Error &) {
            continue;  // ended, or a kernel thread
        }
        if (known == processes.end()) {
            StoppedProcess process{};
            process.host_pid = pid;
            process.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
            processes.push_back(std::move(process));
            known = std::prev(processes.end());
        }
        for (pid_t tid : proc::list_numbers(proc::path(pid, "task"))) {
            bool have = std::any_of(known->threads.begin(), known->threads.end(),
                                    [&](StoppedThread &t) { return t.tracee.tid() == tid; });
            if (have)
                continue;
            WaitNote note = note_wait(pid, tid, clocks);
            try {
                Tracee tracee(tid);
                if (!tracee.stop())
                    continue;
                // From here on the program goes on rightly, wherever the capture ends.
                Continuation plan =
                    continue_from(tracee.registers(), note.channel.c_str(), false);
                tracee.set_continuation(plan.original);
                if (round < kPatientRounds && is_on_its_way_to_sleep(tracee.registers(), plan)) {
                    let_go = found_new = true;
                    continue;
                }
                known->threads.push_back({std::move(tracee), 0, note, monotonic_ns()});
                found_new = true;
            } catch (const os::Error &failure) {
                if (failure.error_number() == ESRCH)
                    continue;
                if (failure.error_number() == EPERM && is_ending(pid, tid)) {
                    found_new = true;  // look again: now it is a zombie
                    continue;
                }
                if (failure.error_number() == EPERM)
                    throw Refused("process " + std::to_string(pid), "thread " + std::to_string(tid),
                                  "it is traced by another process");
                throw;
            }
        }
    }
    if (let_go)
        pause_ms(std::min<long>(round + 1, kMaxPauseMs));
    return found_new;
}

void StoppedTree::describe()
{
    std::map<pid_t, pid_t> inner = {{init_, 1}};
    // A process whose threads all ended between listing and stop is no part of the tree.
    std::erase_if(processes, [](const StoppedProcess &p) { return !p.zombie && p.threads.empty(); });
    for (StoppedProcess &process : processes) {
        process.pid = inner_pid(process.proc_path("status"));
        inner[process.host_pid] = process.pid;
        process.stat = proc::stat_fields(proc::read_text(process.proc_path("stat")));
        process.label = process.stat.at(2) + " (pid " + std::to_string(process.pid) + ")";
    }
    for (StoppedProcess &process : processes) {
        std::map<std::string, std::string> status =
            proc::fields(proc::read_text(process.proc_path("status")));
        process.parent = inner.at(std::stoi(process.stat.at(4)));
        auto last = [&](const char *key) {
            return std::stoi(proc::words(status[key]).back());
        };
        process.group = last("NSpgid");
        process.session = last("NSsid");
        if (process.zombie)
            continue;
        std::sort(process.threads.begin(), process.threads.end(),
                  [&](const StoppedThread &a, const StoppedThread &b) {
                      bool a_leads = a.tracee.tid() == process.host_pid;
                      bool b_leads = b.tracee.tid() == process.host_pid;
                      return a_leads != b_leads ? a_leads : a.tracee.tid() < b.tracee.tid();
                  });
        if (process.leader().tracee.tid() != process.host_pid)
            throw Refused(process.label, "its first thread", "it has ended while others run on");
        for (StoppedThread &thread : process.threads)
            thread.tid = inner_pid(
                process.proc_path("task/" + std::to_string(thread.tracee.tid()) + "/status"));
        std::string memory = process.proc_path("mem");
        process.memory.reset(checked(open(memory.c_str(), O_RDWR | O_CLOEXEC), "open", memory));
    }
    // Init is about to reap these.
    std::erase_if(processes, [](const StoppedProcess &p) { return p.zombie && p.parent == 1; });
    // Parents first.
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
