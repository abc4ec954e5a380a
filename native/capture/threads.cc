#include "capture/threads.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "capture/continuation.h"
#include "capture/plan_remains.h"
#include "capture/settings.h"
#include "os/checked.h"
#include "restore/refused.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr uint32_t kRseqCriticalSectionOffset = 8;  // struct rseq::rseq_cs

struct RseqCriticalSection {
    uint32_t version, flags;
    uint64_t start_ip, post_commit_offset, abort_ip;
};

std::string label(const StoppedProcess &process, const StoppedThread &thread)
{
    return process.label + " thread " + std::to_string(thread.tid);
}

uint64_t hexadecimal(const std::string &text)
{
    return std::stoull(text, nullptr, 16);
}

Credentials read_credentials(std::map<std::string, std::string> &status, uint32_t securebits)
{
    Credentials found{};
    std::vector<std::string> uids = proc::words(status["Uid"]), gids = proc::words(status["Gid"]);
    for (size_t i = 0; i < 4; i++) {
        found.uid[i] = static_cast<uint32_t>(std::stoul(uids.at(i)));
        found.gid[i] = static_cast<uint32_t>(std::stoul(gids.at(i)));
    }
    for (const std::string &group : proc::words(status["Groups"]))
        found.groups.push_back(static_cast<uint32_t>(std::stoul(group)));
    found.inheritable = hexadecimal(status["CapInh"]);
    found.permitted = hexadecimal(status["CapPrm"]);
    found.effective = hexadecimal(status["CapEff"]);
    found.bounding = hexadecimal(status["CapBnd"]);
    found.ambient = hexadecimal(status["CapAmb"]);
    found.securebits = securebits;
    found.no_new_privs = status["NoNewPrivs"] == "1";
    return found;
}

// In a critical section the kernel would have sent the thread to the abort handler when it next
// ran elsewhere; a fork runs elsewhere.
void leave_critical_section(const StoppedProcess &process, const RseqRegistration &rseq,
                            user_regs_struct &registers)
{
    if (rseq.area == 0)
        return;
    uint64_t pointer = 0;
    process.read_memory(rseq.area + kRseqCriticalSectionOffset, &pointer, sizeof pointer);
    if (pointer == 0)
        return;
    RseqCriticalSection section{};
    process.read_memory(pointer, &section, sizeof section);
    if (registers.rip - section.start_ip < section.post_commit_offset)
        registers.rip = section.abort_ip;
}

bool signal_waits(const std::vector<Bytes> &own, const std::vector<Bytes> &shared, uint64_t mask)
{
    for (const std::vector<Bytes> *queue : {&own, &shared})
        for (const Bytes &info : *queue) {
            int number;
            memcpy(&number, info.data(), sizeof number);
            if ((mask & (uint64_t{1} << (number - 1))) == 0)
                return true;
        }
    return false;
}

// The time that remains of a relative sleep which began when the thread was last scheduled.
ResumedCall remaining_sleep(const StoppedProcess &process, const StoppedThread &thread,
                            const Continuation &plan)
{
    const user_regs_struct &registers = thread.tracee.registers();
    const uint64_t arguments[] = {registers.rdi, registers.rsi, registers.rdx,
                                  registers.r10, registers.r8,  registers.r9};
    uint64_t argument = arguments[plan.argument];
    int64_t slept_ns = std::max<int64_t>(0, thread.stopped_at_ns - thread.note.asleep_since_ns);
    if (plan.sleep == Continuation::Sleep::kMilliseconds) {
        int64_t left_ms = static_cast<int32_t>(argument) - slept_ns / 1'000'000;
        return {plan.argument, static_cast<uint64_t>(std::max<int64_t>(0, left_ms)), {}};
    }
    int64_t time[2];
    process.read_memory(argument, time, sizeof time);
    // A sleep that reports its remainder has just written it, maybe over the request itself.
    int64_t left_ns = time[0] * 1'000'000'000 + time[1];
    bool overwritten = plan.fork.rax == SYS_clock_nanosleep ? registers.r10 == argument
                       : plan.fork.rax == SYS_nanosleep     ? registers.rsi == argument
                                                            : false;
    if (!overwritten)
        left_ns = std::max<int64_t>(0, left_ns - slept_ns);
    int64_t left[2] = {left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    auto *bytes = reinterpret_cast<const uint8_t *>(left);
    return {plan.argument, 0, Bytes(bytes, bytes + sizeof left)};
}

void capture_by_injection(StoppedProcess &process, StoppedThread &thread, ThreadImage &image,
                          uint32_t &securebits)
{
    Tracee &tracee = thread.tracee;
    auto call = [&](int64_t number, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
        return tracee.call(process.gadget, number, a, b, c);
    };
    auto require = [&](int64_t result, const char *operation) {
        if (result < 0)
            throw os::Error(operation, label(process, thread), static_cast<int>(-result));
        return result;
    };
    uint64_t page = process.scratch;
    require(call(SYS_prctl, PR_GET_TID_ADDRESS, page), "get the tid address of");
    process.read_memory(page, &image.clear_child_tid, sizeof image.clear_child_tid);
    require(call(SYS_sigaltstack, 0, page), "get the alternate stack of");
    process.read_memory(page, image.alternate_stack, sizeof image.alternate_stack);
    require(call(SYS_prctl, PR_GET_PDEATHSIG, page), "get the parent death signal of");
    process.read_memory(page, &image.parent_death_signal, sizeof image.parent_death_signal);
    securebits = static_cast<uint32_t>(require(call(SYS_prctl, PR_GET_SECUREBITS), "get securebits of"));
    image.timer_slack_ns =
        static_cast<uint64_t>(require(call(SYS_prctl, PR_GET_TIMERSLACK), "get timer slack of"));
}

void capture_from_proc(const StoppedProcess &process, pid_t host_tid, uint32_t securebits,
                       ThreadImage &image)
{
    std::string task = process.proc_path("task/" + std::to_string(host_tid) + "/");
    std::string text = proc::read_text(task + "status");
    std::map<std::string, std::string> status = proc::fields(text);
    // Ids in status are those of the reader's user namespace: capture.cc maps them.
    image.credentials = read_credentials(status, securebits);
    image.name = proc::read_text(task + "comm");
    image.name.pop_back();  // the newline

    std::string name = process.label + " thread " + std::to_string(image.tid);
    sched_param parameters{};
    image.policy = sched_getscheduler(host_tid) & ~SCHED_RESET_ON_FORK;
    checked(sched_getparam(host_tid, &parameters), "get scheduling of", name);
    image.priority = parameters.sched_priority;
    errno = 0;
    image.nice = getpriority(PRIO_PROCESS, static_cast<id_t>(host_tid));
    image.affinity.assign(16, 0);
    long bytes = syscall(SYS_sched_getaffinity, host_tid, image.affinity.size() * sizeof(uint64_t),
                         image.affinity.data());
    checked(bytes, "get affinity of", name);
    image.affinity.resize(static_cast<size_t>(bytes) / sizeof(uint64_t));
}

}  // namespace

ThreadImage capture_thread(StoppedProcess &process, StoppedThread &thread)
{
    ThreadImage image{};
    Tracee &tracee = thread.tracee;
    image.tid = thread.tid;
    image.xstate = tracee.xstate();
    image.signal_mask = tracee.signal_mask();
    image.pending_signals = tracee.pending(false);

    RseqRegistration rseq = tracee.rseq();
    image.rseq_area = rseq.area;
    image.rseq_bytes = rseq.bytes;
    image.rseq_signature = rseq.signature;

    std::vector<Bytes> shared = tracee.pending(true);
    Continuation plan = continue_from(tracee.registers(), thread.note.channel.c_str(),
                                      signal_waits(image.pending_signals, shared, image.signal_mask));
    if (plan.sleep == Continuation::Sleep::kUnknown)
        throw Refused(label(process, thread),
                      "system call " + std::to_string(tracee.registers().orig_rax),
                      "it waits for a time that cannot be read")
            .passing();
    if (plan.sleep != Continuation::Sleep::kNone)
        image.resumed_call = remaining_sleep(process, thread, plan);
    leave_critical_section(process, rseq, plan.fork);
    image.registers = plan.fork;
    leave_plan(process, image);
    tracee.set_continuation(plan.original);

    size_t robust_bytes = 0;
    void *robust = nullptr;
    checked(syscall(SYS_get_robust_list, tracee.tid(), &robust, &robust_bytes),
            "get robust list of", label(process, thread));
    image.robust_list = reinterpret_cast<uint64_t>(robust);
    image.robust_list_bytes = robust_bytes;

    uint32_t securebits = 0;
    capture_by_injection(process, thread, image, securebits);
    capture_thread_settings(process, thread, image);
    capture_from_proc(process, tracee.tid(), securebits, image);
    return image;
}

ThreadImage capture_ended_thread(const StoppedProcess &process)
{
    ThreadImage image{};
    image.tid = process.pid;
    image.ended = true;
    std::string stat = proc::read_text(proc::path(process.host_pid, "stat"));
    image.exit_status = std::stoi(proc::stat_fields(stat).at(52));
    capture_from_proc(process, process.host_pid, 0, image);
    return image;
}

}  // namespace venus
