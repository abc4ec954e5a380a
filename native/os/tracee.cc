#include "os/tracee.h"

#include <elf.h>
#include <linux/filter.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "os/error.h"

namespace venus {
namespace {

constexpr long kGetRseq = 0x420f;  // PTRACE_GET_RSEQ_CONFIGURATION
constexpr long kSuspendSeccomp = 1 << 21;
constexpr size_t kSignalInfoBytes = 128;
constexpr size_t kMaxPending = 4096;
constexpr uint32_t kSharedQueue = PTRACE_PEEKSIGINFO_SHARED;

void *as_pointer(uint64_t value)
{
    return reinterpret_cast<void *>(value);
}

long trace(long request, pid_t tid, uint64_t address, uint64_t data)
{
    return ptrace(static_cast<__ptrace_request>(request), tid, as_pointer(address),
                  as_pointer(data));
}

bool is_group_stop_signal(int signal)
{
    return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

}  // namespace

Tracee::Tracee(pid_t tid) : tid_(tid)
{
    // Without SUSPEND_SECCOMP a program's own filter could forbid what is injected.
    long options = PTRACE_O_TRACESYSGOOD | kSuspendSeccomp;
    if (trace(PTRACE_SEIZE, tid, 0, static_cast<uint64_t>(options)) < 0)
        throw os::Error("ptrace SEIZE", name(), errno);
    seized_ = true;
}

Tracee::Tracee(Tracee &&other) noexcept
{
    swap(other);
}

Tracee &Tracee::operator=(Tracee &&other) noexcept
{
    swap(other);
    return *this;
}

void Tracee::swap(Tracee &other) noexcept
{
    std::swap(tid_, other.tid_);
    std::swap(seized_, other.seized_);
    std::swap(stopped_, other.stopped_);
    std::swap(in_group_stop_, other.in_group_stop_);
    std::swap(at_stop_, other.at_stop_);
    std::swap(continuation_, other.continuation_);
    std::swap(signal_mask_, other.signal_mask_);
    std::swap(changed_, other.changed_);
    std::swap(stop_signal_came_, other.stop_signal_came_);
}

Tracee::~Tracee()
{
    try {
        release();
    } catch (const os::Error &) {
        // The thread was killed meanwhile: there is nothing left to release.
    }
}

std::string Tracee::name() const
{
    return "thread " + std::to_string(tid_);
}

bool Tracee::interrupt()
{
    if (trace(PTRACE_INTERRUPT, tid_, 0, 0) == 0)
        return true;
    if (errno == ESRCH)
        return false;
    throw os::Error("ptrace INTERRUPT", name(), errno);
}

Tracee::Stop Tracee::poll_stop()
{
    for (;;) {
        int status = 0;
        pid_t found = waitpid(tid_, &status, __WALL | __WNOTHREAD | WNOHANG);
        if (found == 0)
            return Stop::kPending;
        if (found < 0) {
            if (errno == EINTR)
                continue;
            throw os::Error("wait for stop of", name(), errno);
        }
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            seized_ = false;
            return Stop::kEnded;
        }
        int event = status >> 16;
        if (event == PTRACE_EVENT_STOP) {
            in_group_stop_ = is_group_stop_signal(WSTOPSIG(status));
            read_stop();
            return Stop::kStopped;
        }
        // A signal was being delivered: let it in, the stop that we asked for comes next.
        uint64_t signal = event == 0 ? static_cast<uint64_t>(WSTOPSIG(status)) : 0;
        if (trace(PTRACE_CONT, tid_, 0, signal) < 0)
            throw os::Error("ptrace CONT", name(), errno);
    }
}

void Tracee::read_stop()
{
    stopped_ = true;
    if (trace(PTRACE_GETREGS, tid_, 0, reinterpret_cast<uint64_t>(&at_stop_)) < 0)
        throw os::Error("ptrace GETREGS", name(), errno);
    if (trace(PTRACE_GETSIGMASK, tid_, sizeof signal_mask_,
              reinterpret_cast<uint64_t>(&signal_mask_)) < 0)
        throw os::Error("ptrace GETSIGMASK", name(), errno);
    continuation_ = at_stop_;
}

std::vector<uint8_t> Tracee::xstate() const
{
    std::vector<uint8_t> bytes(16384);
    iovec vector = {bytes.data(), bytes.size()};
    if (trace(PTRACE_GETREGSET, tid_, NT_X86_XSTATE, reinterpret_cast<uint64_t>(&vector)) < 0)
        throw os::Error("ptrace GETREGSET xstate", name(), errno);
    bytes.resize(vector.iov_len);
    return bytes;
}

RseqRegistration Tracee::rseq() const
{
    struct {
        uint64_t pointer;
        uint32_t size, signature, flags, pad;
    } found{};
    if (trace(kGetRseq, tid_, sizeof found, reinterpret_cast<uint64_t>(&found)) < 0)
        throw os::Error("ptrace GET_RSEQ_CONFIGURATION", name(), errno);
    return {found.pointer, found.size, found.signature};
}

std::vector<std::vector<uint8_t>> Tracee::pending(bool of_process) const
{
    std::vector<std::vector<uint8_t>> found;
    if (!of_process && stop_signal_came_) {
        siginfo_t info{};
        info.si_signo = SIGSTOP;
        auto *bytes = reinterpret_cast<const uint8_t *>(&info);
        found.emplace_back(bytes, bytes + kSignalInfoBytes);
    }
    uint64_t index = 0;
    while (index < kMaxPending) {
        std::vector<uint8_t> info(kSignalInfoBytes);
        struct __ptrace_peeksiginfo_args request = {index++, of_process ? kSharedQueue : 0, 1};
        long count = trace(PTRACE_PEEKSIGINFO, tid_, reinterpret_cast<uint64_t>(&request),
                           reinterpret_cast<uint64_t>(info.data()));
        if (count < 0)
            throw os::Error("ptrace PEEKSIGINFO", name(), errno);
        if (count == 0)
            return found;
        found.push_back(std::move(info));
    }
    throw os::Error("read the pending signals of", name(), E2BIG);
}

std::vector<std::vector<uint8_t>> Tracee::seccomp_filters() const
{
    std::vector<std::vector<uint8_t>> filters;
    for (uint64_t index = 0;; index++) {
        long count = trace(PTRACE_SECCOMP_GET_FILTER, tid_, index, 0);
        if (count < 0) {
            if (errno == ENOENT || errno == EINVAL)  // past the last one; none at all
                return filters;
            throw os::Error("ptrace SECCOMP_GET_FILTER", name(), errno);
        }
        std::vector<uint8_t> program(static_cast<size_t>(count) * sizeof(sock_filter));
        if (trace(PTRACE_SECCOMP_GET_FILTER, tid_, index,
                  reinterpret_cast<uint64_t>(program.data())) < 0)
            throw os::Error("ptrace SECCOMP_GET_FILTER", name(), errno);
        filters.push_back(std::move(program));
    }
}

void Tracee::wait_stopped(int expected_signal, const char *operation)
{
    int status = 0;
    for (;;) {
        while (waitpid(tid_, &status, __WALL | __WNOTHREAD) < 0)
            if (errno != EINTR)
                throw os::Error(operation, name(), errno);
        if (WIFSTOPPED(status) && (status >> 8) == expected_signal)
            return;
        // A thread of a stopped process first reports the stop that was asked for.
        bool asked_for = WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_STOP;
        bool stop_signal = WIFSTOPPED(status) && status >> 8 == SIGSTOP;
        if (!asked_for && !stop_signal)
            break;
        stop_signal_came_ |= stop_signal;
        if (trace(PTRACE_SYSCALL, tid_, 0, 0) < 0)
            throw os::Error("ptrace SYSCALL", name(), errno);
    }
    if (WIFEXITED(status) || WIFSIGNALED(status))
        seized_ = false;
    throw os::Error(operation, name(), ECHILD);
}

int64_t Tracee::call(uint64_t gadget, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                     uint64_t e, uint64_t f)
{
    if (!changed_) {
        // No handler may run on what we put into the registers.
        uint64_t all = ~uint64_t{0};
        if (trace(PTRACE_SETSIGMASK, tid_, sizeof all, reinterpret_cast<uint64_t>(&all)) < 0)
            throw os::Error("ptrace SETSIGMASK", name(), errno);
        changed_ = true;
    }
    user_regs_struct registers = at_stop_;
    registers.orig_rax = static_cast<unsigned long long>(-1);
    registers.rip = gadget;
    registers.rax = static_cast<unsigned long long>(number);
    registers.rdi = a;
    registers.rsi = b;
    registers.rdx = c;
    registers.r10 = d;
    registers.r8 = e;
    registers.r9 = f;
    if (trace(PTRACE_SETREGS, tid_, 0, reinterpret_cast<uint64_t>(&registers)) < 0)
        throw os::Error("ptrace SETREGS", name(), errno);
    // Stops at entry and exit, not single steps: a step raises SIGTRAP, which resets a blocked
    // or ignored SIGTRAP of the program to its default action.
    for (const char *operation : {"enter an injected call in", "finish an injected call in"}) {
        if (trace(PTRACE_SYSCALL, tid_, 0, 0) < 0)
            throw os::Error("ptrace SYSCALL", name(), errno);
        wait_stopped(SIGTRAP | 0x80, operation);
    }
    if (trace(PTRACE_GETREGS, tid_, 0, reinterpret_cast<uint64_t>(&registers)) < 0)
        throw os::Error("ptrace GETREGS", name(), errno);
    return static_cast<int64_t>(registers.rax);
}

void Tracee::set(const user_regs_struct &registers, uint64_t signal_mask)
{
    if (trace(PTRACE_SETREGS, tid_, 0, reinterpret_cast<uint64_t>(&registers)) < 0)
        throw os::Error("ptrace SETREGS", name(), errno);
    if (trace(PTRACE_SETSIGMASK, tid_, sizeof signal_mask,
              reinterpret_cast<uint64_t>(&signal_mask)) < 0)
        throw os::Error("ptrace SETSIGMASK", name(), errno);
}

void Tracee::put_back()
{
    if (changed_)
        set(at_stop_, signal_mask_);
    changed_ = false;
}

void Tracee::release()
{
    // What never stopped the kernel releases at the end of this thread of ours.
    if (!seized_ || !stopped_)
        return;
    seized_ = false;
    if (changed_ || continuation_.rip != at_stop_.rip || continuation_.rax != at_stop_.rax)
        set(continuation_, signal_mask_);
    if (stop_signal_came_)
        syscall(SYS_tkill, tid_, SIGSTOP);
    if (trace(PTRACE_DETACH, tid_, 0, 0) < 0 && errno != ESRCH)
        throw os::Error("ptrace DETACH", name(), errno);
}

}  // namespace venus
