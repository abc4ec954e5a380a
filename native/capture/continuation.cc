#include "capture/continuation.h"

#include <errno.h>
#include <sys/syscall.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "memory/page_runs.h"

namespace venus {
namespace {

// include/linux/errno.h; never seen by programs.
constexpr int64_t kRestartSys = 512, kRestartNoIntr = 513, kRestartNoHand = 514,
                  kRestartBlock = 516;
constexpr uint64_t kSyscallInstructionBytes = 2;

// Calls that end with EINTR at any stop, even without a signal handler: signal(7), "Interruption
// of system calls and library functions by stop signals".
constexpr long kEndsAtStop[] = {SYS_epoll_wait, SYS_epoll_pwait, 441 /* epoll_pwait2 */,
                                SYS_semop,      SYS_semtimedop,  SYS_io_getevents,
                                SYS_rt_sigtimedwait};

// The restart of a nanosleep is a row of tail calls on some builds of the kernel: what then stands
// on the stack is the entry of the call alone. The other calls that restart have functions there.
bool is_nanosleep(std::string_view channel)
{
    static constexpr std::string_view entries[] = {"do_syscall_64", "x64_sys_call",
                                                   "__x64_sys_restart_syscall",
                                                   "__do_sys_restart_syscall"};
    return channel.find("nanosleep") != channel.npos ||
           std::find(std::begin(entries), std::end(entries), channel) != std::end(entries);
}

void enter_again(user_regs_struct &registers, int64_t number)
{
    registers.rip -= kSyscallInstructionBytes;
    registers.rax = static_cast<unsigned long long>(number);
}

}  // namespace

Continuation continue_from(const user_regs_struct &at_stop, const char *channel, bool signal_waits)
{
    Continuation plan{};
    plan.original = plan.fork = at_stop;
    auto number = static_cast<int64_t>(at_stop.orig_rax);
    // No restart logic of the kernel may look at these registers again.
    plan.original.orig_rax = plan.fork.orig_rax = static_cast<unsigned long long>(-1);
    if (number < 0)
        return plan;
    auto result = -static_cast<int64_t>(at_stop.rax);
    bool ends_at_stop =
        std::find(std::begin(kEndsAtStop), std::end(kEndsAtStop), number) != std::end(kEndsAtStop);
    if (result == kRestartSys || result == kRestartNoIntr || result == kRestartNoHand ||
        (result == EINTR && ends_at_stop && !signal_waits)) {
        enter_again(plan.original, number);
        enter_again(plan.fork, number);
        bool milliseconds = number == SYS_epoll_wait || number == SYS_epoll_pwait;
        if (result == EINTR && milliseconds && static_cast<int32_t>(at_stop.r10) > 0) {
            plan.sleep = Continuation::Sleep::kMilliseconds;
            plan.argument = 3;
        }
        return plan;
    }
    if (result != kRestartBlock)
        return plan;
    enter_again(plan.original, SYS_restart_syscall);
    if (number == SYS_restart_syscall) {
        // Restarted before: the registers no longer say which call it was, but its arguments are
        // still there and the place where it slept tells the call.
        std::string_view where = channel;
        if (is_nanosleep(where))
            number = at_stop.rdi < kPageBytes ? SYS_clock_nanosleep : SYS_nanosleep;
        else if (where.find("poll") != where.npos)
            number = SYS_poll;
        else if (where.find("futex") != where.npos)
            number = SYS_futex;
        // nanosleep starts with a pointer, clock_nanosleep with the number of a clock.
    }
    enter_again(plan.fork, number);
    switch (number) {
    case SYS_nanosleep:
        plan.sleep = Continuation::Sleep::kTimespec;
        plan.argument = 0;
        break;
    case SYS_clock_nanosleep:
        plan.sleep = Continuation::Sleep::kTimespec;
        plan.argument = 2;
        break;
    case SYS_poll:
        if (static_cast<int32_t>(at_stop.rdx) > 0) {
            plan.sleep = Continuation::Sleep::kMilliseconds;
            plan.argument = 2;
        }
        break;
    case SYS_futex: {
        // FUTEX_WAIT takes a relative time, FUTEX_WAIT_BITSET and the others an absolute one.
        constexpr uint64_t kCommandMask = 0x7f;
        if ((at_stop.rsi & kCommandMask) == 0 && at_stop.r10 != 0) {
            plan.sleep = Continuation::Sleep::kTimespec;
            plan.argument = 3;
        }
        break;
    }
    default:
        plan.sleep = Continuation::Sleep::kUnknown;
    }
    return plan;
}

}  // namespace venus
