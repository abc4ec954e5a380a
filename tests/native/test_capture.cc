// The pure parts of capture: how interrupted calls go on, and what /proc says.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "capture/areas.h"
#include "capture/continuation.h"
#include "capture/id_map.h"
#include "check.h"
#include "os/proc.h"

namespace {

using namespace venus;

user_regs_struct stopped_in(long number, long result)
{
    user_regs_struct registers{};
    registers.orig_rax = static_cast<unsigned long long>(number);
    registers.rax = static_cast<unsigned long long>(-result);
    registers.rip = 0x400002;
    return registers;
}

void test_limits_are_what_the_kernel_says()
{
    auto limits = proc::limits(proc::read_text("/proc/self/limits"));
    for (int which = 0; which < RLIM_NLIMITS; which++) {
        rlimit64 expected{};
        CHECK(syscall(SYS_prlimit64, 0, which, nullptr, &expected) == 0);
        CHECK(limits[static_cast<size_t>(which)].rlim_cur == expected.rlim_cur);
        CHECK(limits[static_cast<size_t>(which)].rlim_max == expected.rlim_max);
    }
}

void test_interrupted_calls_are_entered_again()
{
    for (long code : {512, 513, 514}) {
        Continuation plan = continue_from(stopped_in(SYS_read, code), "pipe_read", true);
        CHECK(plan.fork.rip == 0x400000 && plan.fork.rax == SYS_read);
        CHECK(plan.original.rip == 0x400000 && plan.original.rax == SYS_read);
        CHECK(static_cast<long>(plan.fork.orig_rax) == -1);
    }
}

void test_finished_calls_stay_finished()
{
    Continuation plan = continue_from(stopped_in(SYS_read, EINTR), "0", false);
    CHECK(plan.fork.rip == 0x400002 && static_cast<long>(plan.fork.rax) == -EINTR);
    user_regs_struct outside = stopped_in(-1, 512);
    CHECK(continue_from(outside, "0", false).fork.rip == 0x400002);
}

void test_epoll_ends_with_eintr_only_for_a_signal()
{
    user_regs_struct registers = stopped_in(SYS_epoll_wait, EINTR);
    registers.r10 = 500;
    Continuation quiet = continue_from(registers, "ep_poll", false);
    CHECK(quiet.fork.rax == SYS_epoll_wait && quiet.original.rax == SYS_epoll_wait);
    CHECK(quiet.sleep == Continuation::Sleep::kMilliseconds && quiet.argument == 3);
    Continuation signalled = continue_from(registers, "ep_poll", true);
    CHECK(static_cast<long>(signalled.fork.rax) == -EINTR);
}

void test_relative_sleeps_go_on_with_the_rest()
{
    Continuation sleep = continue_from(stopped_in(SYS_nanosleep, 516), "hrtimer_nanosleep", false);
    CHECK(sleep.original.rax == SYS_restart_syscall && sleep.fork.rax == SYS_nanosleep);
    CHECK(sleep.sleep == Continuation::Sleep::kTimespec && sleep.argument == 0);
    user_regs_struct again = stopped_in(SYS_restart_syscall, 516);
    again.rdi = CLOCK_MONOTONIC;
    Continuation second = continue_from(again, "hrtimer_nanosleep", false);
    CHECK(second.fork.rax == SYS_clock_nanosleep && second.argument == 2);
    Continuation unknown = continue_from(again, "0", false);
    CHECK(unknown.sleep == Continuation::Sleep::kUnknown);
}

void test_areas()
{
    std::vector<Area> areas = parse_areas(
        "7f0000000000-7f0000002000 rw-s 00001000 00:01 42         /a name (deleted)\n"
        "Size: 8 kB\nProtectionKey:         3\nVmFlags: rd wr sh mr mw \n"
        "7f0000003000-7f0000004000 ---p 00000000 00:00 0 \nVmFlags: mr mw me \n");
    CHECK(areas.size() == 2);
    CHECK(areas[0].shared && areas[0].protection == (PROT_READ | PROT_WRITE));
    CHECK(areas[0].name == "/a name (deleted)" && areas[0].offset == 0x1000);
    CHECK(areas[0].protection_key == 3 && areas[0].flags.contains("mw"));
    CHECK(!areas[1].shared && areas[1].name.empty() && areas[1].inode == 0);
}

void test_stat_with_a_hostile_name()
{
    std::vector<std::string> fields = proc::stat_fields("12 (a) b (c) R 1 2 3");
    CHECK(fields[1] == "12" && fields[2] == "a) b (c" && fields[3] == "R" && fields[4] == "1");
}

void test_id_map()
{
    IdMap map("0 100000 65536\n70000 5 1\n");
    CHECK(map.inner(100000) == 0u && map.inner(165535) == 65535u && map.inner(5) == 70000u);
    CHECK(!map.inner(0) && !map.inner(165536));
}

}  // namespace

int main()
{
    test_limits_are_what_the_kernel_says();
    test_interrupted_calls_are_entered_again();
    test_finished_calls_stay_finished();
    test_epoll_ends_with_eintr_only_for_a_signal();
    test_relative_sleeps_go_on_with_the_rest();
    test_areas();
    test_stat_with_a_hostile_name();
    test_id_map();
    return 0;
}
