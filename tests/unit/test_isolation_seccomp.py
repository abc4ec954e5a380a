"""The compiled filter, run by an interpreter, against the policy as it is written."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from sandboxd.isolation.seccomp import (
    ABSENT_CALLS,
    ALLOWED_CALLS,
    FILTERED_CALLS,
    TIOCLINUX,
    TIOCSTI,
    compile_filter,
)
from sandboxd.isolation.syscall_filter import (
    ALLOW,
    AUDIT_ARCH_X86_64,
    X32_SYSCALL_BIT,
    Argument,
    Case,
    Rule,
    compile_policy,
    refuse,
)
from sandboxd.isolation.syscall_numbers import LAST_KNOWN, SYSCALL_NUMBERS

pytestmark = pytest.mark.unit

ALLOWED = 0x7FFF0000
AUDIT_ARCH_I386 = 0x40000003
DANGEROUS_CALLS = """
mount umount2 pivot_root move_mount open_tree fsopen fsmount mount_setattr setns bpf
io_uring_setup userfaultfd keyctl add_key request_key perf_event_open vmsplice kexec_load
init_module finit_module delete_module reboot swapon quotactl open_by_handle_at syslog acct iopl
ioperm settimeofday clock_settime clock_adjtime adjtimex sethostname fanotify_init kcmp
modify_ldt process_madvise
"""


def refused(error: int) -> int:
    return 0x00050000 | error


def run(code: bytes, number: int, *arguments: int, arch: int = AUDIT_ARCH_X86_64) -> int:
    """What the kernel would return: a small interpreter of classic BPF."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    program = list(struct.iter_unpack("=HBBI", code))
    accumulator = position = 0
    while True:
        operation, if_true, if_false, value = program[position]
        position += 1
        match operation:
            case 0x20:  # ld [value]
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x54:  # and
                accumulator &= value
            case 0x05:  # ja
                position += value
            case 0x15:  # jeq
                position += if_true if accumulator == value else if_false
            case 0x25:  # jgt
                position += if_true if accumulator > value else if_false
            case 0x35:  # jge
                position += if_true if accumulator >= value else if_false
            case 0x06:  # ret
                return value
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")


def verdict(name: str, *arguments: int) -> int:
    return run(compile_filter(), SYSCALL_NUMBERS[name], *arguments)


def test_every_number_has_the_verdict_of_the_lists() -> None:
    names = {number: name for name, number in SYSCALL_NUMBERS.items()}
    allowed, absent = set(ALLOWED_CALLS.split()), set(ABSENT_CALLS.split())
    for number in range(LAST_KNOWN + 1):
        name = names.get(number, "")
        if name in FILTERED_CALLS:
            continue
        expected = refused(errno.EPERM)
        if name in allowed:
            expected = ALLOWED
        elif name in absent:
            expected = refused(errno.ENOSYS)
        assert run(compile_filter(), number) == expected, (number, name)


def test_the_lists_do_not_contradict_each_other() -> None:
    lists = [ALLOWED_CALLS.split(), ABSENT_CALLS.split(), list(FILTERED_CALLS)]
    everything = [name for names in lists for name in names]
    assert len(everything) == len(set(everything))
    assert set(everything) <= set(SYSCALL_NUMBERS)


@pytest.mark.parametrize("name", DANGEROUS_CALLS.split())
def test_dangerous_calls_are_refused(name: str) -> None:
    assert verdict(name) == refused(errno.EPERM)


@pytest.mark.parametrize("flag_bit", [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000,
                                      0x20000000, 0x40000000])  # fmt: skip
def test_no_namespace_by_clone_or_unshare(flag_bit: int) -> None:
    thread = 0x003D0F00  # what pthread_create asks for
    for flags in (flag_bit, flag_bit | 17, flag_bit | thread, flag_bit | 1 << 40):
        assert verdict("clone", flags) == refused(errno.EPERM)
        assert verdict("unshare", flags) == refused(errno.EPERM)


def test_processes_and_threads_are_allowed() -> None:
    assert verdict("clone", 0x003D0F00) == ALLOWED
    assert verdict("clone", 0x01200011) == ALLOWED  # fork() of a C library
    assert verdict("unshare", 0x200 | 0x400) == ALLOWED  # CLONE_FS | CLONE_FILES
    assert verdict("unshare", 0x80) == refused(errno.EPERM)  # CLONE_NEWTIME
    assert verdict("clone3") == refused(errno.ENOSYS)


@pytest.mark.parametrize("request_number", [TIOCSTI, TIOCLINUX])
def test_terminal_injection_is_refused_whatever_the_upper_half_says(request_number: int) -> None:
    # The kernel reads 32 bits of the request; a comparison of 64 was CVE-2019-7303.
    for disguise in (0, 1 << 32, 0xFFFFFFFF << 32):
        assert verdict("ioctl", 0, request_number | disguise) == refused(errno.EPERM)
    assert verdict("ioctl", 0, request_number + 1) == ALLOWED
    assert verdict("ioctl", request_number, 0x5401) == ALLOWED


def test_socket_families() -> None:
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        assert verdict("socket", family, socket.SOCK_STREAM, 0) == ALLOWED
    assert verdict("socket", socket.AF_NETLINK, socket.SOCK_RAW, 0) == ALLOWED
    unsupported = refused(errno.EAFNOSUPPORT)
    assert verdict("socket", socket.AF_NETLINK, socket.SOCK_RAW, 9) == unsupported  # audit
    for family in (socket.AF_PACKET, socket.AF_ALG, socket.AF_VSOCK, 1 << 32 | socket.AF_ALG):
        assert verdict("socket", family, socket.SOCK_STREAM, 0) == unsupported
    assert verdict("socketpair", socket.AF_UNIX) == ALLOWED
    assert verdict("socketpair", socket.AF_TIPC) == unsupported


def test_personality() -> None:
    assert verdict("personality", 0xFFFFFFFF) == ALLOWED
    assert verdict("personality", 0x0040000) == ALLOWED
    assert verdict("personality", 0x0400000) == refused(errno.EPERM)  # READ_IMPLIES_EXEC
    assert verdict("personality", 0x0100000) == refused(errno.EPERM)  # MMAP_PAGE_ZERO


def test_other_abis_and_newer_calls_do_not_exist() -> None:
    absent = refused(errno.ENOSYS)
    assert run(compile_filter(), 0, arch=AUDIT_ARCH_I386) == absent
    for number in (LAST_KNOWN + 1, 5000, X32_SYSCALL_BIT, X32_SYSCALL_BIT | 59, 0xFFFFFFFF):
        assert run(compile_filter(), number) == absent


def test_what_gdb_and_strace_need() -> None:
    for name in ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "tgkill"):
        assert verdict(name) == ALLOWED


def test_conditions_over_both_halves_of_an_argument() -> None:
    wide = Argument(0, value=0x1_00000002, mask=0xF_0000000F)
    rules = {7: Rule(refuse(1), (Case((wide, Argument(5, 3)), ALLOW),))}
    code = compile_policy(rules, Rule(refuse(2)), 10)
    assert run(code, 7, 0x1_00000002, 0, 0, 0, 0, 3) == ALLOWED
    assert run(code, 7, 0xF1_F00000F2, 0, 0, 0, 0, 3) == ALLOWED
    for arguments in ((0x2, 3), (0x1_00000003, 3), (0x1_00000002, 4), (0x3_00000002, 3)):
        assert run(code, 7, arguments[0], 0, 0, 0, 0, arguments[1]) == refused(1)
    assert run(code, 8) == refused(2)


def test_a_condition_that_never_holds_is_a_mistake() -> None:
    rules = {1: Rule(ALLOW, (Case((Argument(0, 0x10, mask=0xF),), ALLOW),))}
    with pytest.raises(ValueError, match="never hold"):
        compile_policy(rules, Rule(ALLOW), 2)


def test_the_filter_fits_the_kernel() -> None:
    assert len(compile_filter()) % 8 == 0
    assert len(compile_filter()) // 8 <= 4096


def test_no_state_that_a_snapshot_could_not_see() -> None:
    for name in ("create_ruleset", "add_rule", "restrict_self"):
        assert verdict(f"landlock_{name}") == refused(errno.ENOSYS)
    set_filter, thread_sync, listener = 1, 1, 8
    assert verdict("seccomp", set_filter, thread_sync) == ALLOWED
    assert verdict("seccomp", set_filter, listener) == refused(errno.EINVAL)
    assert verdict("seccomp", set_filter, thread_sync | listener) == refused(errno.EINVAL)
    assert verdict("seccomp", 2, listener) == ALLOWED, "another operation, its number means no flag"
