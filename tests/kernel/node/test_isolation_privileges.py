"""What a command may not do, as root of its sandbox and as another user."""

from __future__ import annotations

import errno

import pytest

from sandboxd.isolation.capabilities import capability_mask
from sandboxd.isolation.seccomp import TIOCLINUX, TIOCSTI
from sandboxd.isolation.syscall_numbers import SYSCALL_NUMBERS
from tests.kernel.node.harness import Box

NEW_USER, NEW_NS, NEW_NET = 0x10000000, 0x00020000, 0x40000000


def errno_of(box: Box, name: str, *arguments: int, user: str = "") -> int:
    return int(box.probe("call", SYSCALL_NUMBERS[name], *arguments, user=user))


def status_of(box: Box, user: str = "") -> dict[str, str]:
    text = box.output("cat /proc/self/status", user=user)
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_capabilities_of_root_are_the_reviewed_set(box: Box) -> None:
    status = status_of(box)
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[kind], 16) == capability_mask(), kind
    for kind in ("CapInh", "CapAmb"):
        assert int(status[kind], 16) == 0, kind


def test_another_user_has_no_capability(box: Box) -> None:
    status = status_of(box, user="1000")
    assert status["Uid"].split() == ["1000"] * 4
    for kind in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert int(status["CapBnd"], 16) == capability_mask()


@pytest.mark.parametrize("user", ["", "1000"])
def test_no_new_privileges_and_a_filter(box: Box, user: str) -> None:
    status = status_of(box, user)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_a_set_user_id_program_gains_nothing(box: Box) -> None:
    box.output("cp /usr/bin/id /usr/local/bin/rootid; chmod 4755 /usr/local/bin/rootid")
    assert box.output("/usr/local/bin/rootid -u", user="1000") == "1000"
    assert "nosuid" in box.output("grep ' / / ' /proc/self/mountinfo || cat /proc/mounts | head -1")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unshare", (NEW_USER,)),
        ("unshare", (NEW_NS,)),
        ("clone", (NEW_USER | NEW_NET | 17, 0)),
        ("setns", (0, 0)),
        ("mount", (0, 0, 0, 0, 0)),
        ("umount2", (0, 0)),
        ("pivot_root", (0, 0)),
        ("fsopen", (0, 0)),
        ("open_tree", (0, 0, 0)),
        ("move_mount", (0, 0, 0, 0, 0)),
        ("mount_setattr", (0, 0, 0, 0, 0)),
        ("bpf", (0, 0, 0)),
        ("io_uring_setup", (1, 0)),
        ("userfaultfd", (0,)),
        ("keyctl", (0, 0, 0, 0, 0)),
        ("add_key", (0, 0, 0, 0, 0)),
        ("perf_event_open", (0, 0, 0, 0, 0)),
        ("vmsplice", (0, 0, 0, 0)),
        ("init_module", (0, 0, 0)),
        ("kexec_load", (0, 0, 0, 0)),
        ("syslog", (3, 0, 0)),
        ("open_by_handle_at", (0, 0, 0)),
        ("personality", (0x0400000,)),
        ("ioctl", (0, TIOCSTI, 0)),
        ("ioctl", (0, TIOCSTI | 1 << 32, 0)),
        ("ioctl", (0, TIOCLINUX, 0)),
    ],
)
def test_the_filter_refuses(box: Box, name: str, arguments: tuple[int, ...]) -> None:
    # The arguments are senseless: EFAULT, EINVAL, EBADF or ENOTTY would mean that the kernel
    # looked at them.
    assert errno_of(box, name, *arguments) == errno.EPERM


def test_calls_that_do_not_exist_here(box: Box) -> None:
    assert errno_of(box, "clone3", 0, 0) == errno.ENOSYS
    assert int(box.probe("call", 9999)) == errno.ENOSYS
    assert int(box.probe("call", 0x40000000 | 39)) == errno.ENOSYS  # x32 getpid
    assert int(box.probe("i386")) == errno.ENOSYS


@pytest.mark.parametrize(
    ("family", "protocol"),
    [(38, 0), (17, 0), (40, 0), (16, 9)],
    ids=["alg", "packet", "vsock", "audit"],
)
def test_socket_families_beyond_the_needed_ones(box: Box, family: int, protocol: int) -> None:
    assert errno_of(box, "socket", family, 3, protocol) == errno.EAFNOSUPPORT


def test_sockets_that_programs_need(box: Box) -> None:
    for family, kind, protocol in ((1, 1, 0), (2, 1, 0), (10, 2, 0), (16, 3, 0)):
        assert errno_of(box, "socket", family, kind, protocol) == 0, family


def test_raw_sockets_are_refused_even_to_root(box: Box) -> None:
    assert errno_of(box, "socket", 2, 3, 1) == errno.EPERM


def test_a_command_may_trace_its_own_processes(box: Box) -> None:
    assert box.probe("trace") == "0"
    assert box.probe("trace", user="1000") == "0"


def test_init_is_out_of_reach(box: Box) -> None:
    assert errno_of(box, "ptrace", 16, 1, 0, 0) == errno.EPERM
    assert box.shell("cat /proc/1/environ").code != 0
    assert box.shell("ls -l /proc/1/fd/").code != 0
    box.shell("kill -9 1; kill -TERM 1")
    assert box.output("echo alive") == "alive"


def test_device_nodes_cannot_be_made(box: Box) -> None:
    done = box.shell("mknod /root/disk b 254 0")
    assert done.code != 0
    assert b"not permitted" in done.stderr
    assert box.output("mkfifo /root/fifo && ls /root/fifo") == "/root/fifo"


@pytest.mark.parametrize("path", ["/proc/keys", "/proc/timer_list", "/proc/interrupts"])
def test_masked_files_are_empty(box: Box, path: str) -> None:
    assert box.output(f"cat {path}") == ""
    assert box.shell(f"rm {path} || mv {path} /tmp/x").code != 0


@pytest.mark.parametrize("path", ["/sys/firmware", "/proc/acpi"])
def test_masked_directories_are_empty(box: Box, path: str) -> None:
    assert box.output(f"if [ -e {path} ]; then ls -A {path}; fi") == ""


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/kernel/ns_last_pid",
        "/sys/kernel/uevent_helper",
        "/sys/class/net/lo/mtu",
    ],
)
def test_what_steers_the_kernel_is_read_only(box: Box, path: str) -> None:
    if box.shell(f"test -e {path}").code != 0:
        return  # this kernel has no such switch, which is as good
    done = box.shell(f"cat {path} > /tmp/old; cat /tmp/old > {path}")
    assert done.code != 0
    assert b"Read-only" in done.stderr or b"ermission denied" in done.stderr


def test_mounts_are_locked(box: Box) -> None:
    assert box.shell("umount /proc/keys").code != 0
    assert box.shell("mount -o remount,rw /sys").code != 0


def test_cores_never_reach_the_host(box: Box) -> None:
    assert box.output("ulimit -c; ulimit -H -c").split() == ["0", "0"]


def test_open_files_are_bounded(box: Box) -> None:
    assert box.output("ulimit -n") == "1024"
