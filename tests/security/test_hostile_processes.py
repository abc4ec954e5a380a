"""A sandbox that attacks the node, the daemon and its own init."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import exec_frames, request

MIB = 1 << 20


def is_well(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    assert request(daemon.socket, "GET", "/v1/health")[0] == 200
    assert sandbox.commands.run("echo well").stdout == "well\n"


def test_a_fork_bomb_ends_with_its_timeout(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, pids=64, cpu_cores=0.5) as sandbox:
        begun = time.monotonic()
        bomb = (
            "import os\n"
            "while True:\n"
            "  try:\n"
            "    if os.fork() == 0: os.setsid()\n"
            "  except OSError: pass\n"
        )
        result = sandbox.commands.run(["python3", "-c", bomb], timeout=2, check=False)
        assert time.monotonic() - begun < 40
        assert result.reason.value == "timeout"
        deadline = time.monotonic() + 20
        while sandbox.metrics().pids > 8:
            assert time.monotonic() < deadline, "the bomb survives its timeout"
            time.sleep(0.05)
        is_well(daemon, sandbox)


def test_a_full_disk_is_the_sandboxs_own(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, disk_bytes=16 * MIB) as sandbox:
        sandbox.commands.run("head -c 100000000 /dev/urandom > /root/fill; sync", check=False)
        with Sandbox.create(socket=daemon.socket) as other:
            other.files.write("/root/f", b"x" * 4 * MIB)
            is_well(daemon, other)


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/dev", "/run"])
def test_a_full_tmpfs_is_the_sandboxs_own(daemon: DaemonProcess, place: str) -> None:
    available = psutil.virtual_memory().available
    with Sandbox.create(socket=daemon.socket, memory_bytes=64 * MIB) as sandbox:
        sandbox.commands.run(f"head -c 2000000000 /dev/zero > {place}/fill", check=False)
        script = f"i=0; while : > {place}/f$i; do i=$((i+1)); done"
        sandbox.commands.run(script, timeout=3, check=False)
        assert available - psutil.virtual_memory().available < 1 << 30
        assert sandbox.metrics().memory_bytes <= 64 * MIB
        assert request(daemon.socket, "GET", "/v1/health")[0] == 200


def test_endless_output_of_many_commands_keeps_the_daemon_flat(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    process = psutil.Process(daemon.pid)
    streams = [
        exec_frames(
            daemon.socket, sandbox.sandbox_id, {"command": "cat /dev/zero & cat /dev/zero >&2"}
        )
        for _ in range(8)
    ]
    for stream in streams:
        next(stream)
    before = process.memory_info().rss
    for _ in range(50):
        for stream in streams:
            next(stream)
    assert process.memory_info().rss - before < 16 * MIB
    for stream in streams:
        stream.close()
    is_well(daemon, sandbox)


def test_background_noise_does_not_keep_the_daemon_busy(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    for _ in range(4):
        sandbox.commands.run("cat /dev/zero &")
    process = psutil.Process(daemon.pid)
    before, begun = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(2)
    share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begun)
    assert share < 0.5
    is_well(daemon, sandbox)


def test_init_cannot_be_killed_or_traced_from_inside(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    script = (
        "import os\n"
        "for number in range(1, 65):\n"
        "  try: os.kill(1, number)\n"
        "  except OSError: pass\n"
        "for name in ('mem', 'environ', 'maps', 'auxv', 'syscall', 'stack', 'fd/3', 'map_files'):\n"
        "  try: print('opened', name, open('/proc/1/' + name, 'rb').read(1))\n"
        "  except OSError: pass\n"
    )
    attach = "print syscall(101, 16, 1, 0, 0), ' ', $! + 0"
    assert sandbox.commands.run(["perl", "-e", attach]).stdout == "-1 1"
    result = sandbox.commands.run(["python3", "-c", script])
    assert "opened" not in result.stdout
    sandbox.commands.run("kill -9 -1", check=False)
    is_well(daemon, sandbox)


def test_the_daemon_and_its_paths_are_invisible(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    run_dir, state_dir = daemon.run_dir.name, daemon.state_dir.name
    seen = sandbox.commands.run(
        "cat /proc/self/mountinfo /proc/self/cgroup /proc/1/cgroup /proc/net/unix /proc/1/cmdline"
        " /proc/self/environ /proc/cmdline; ls -la / /run /var/lib; ps -ef",
        check=False,
    ).stdout
    for name in (run_dir, "sandboxd", "init.sock", daemon.socket):
        assert name not in seen, name
    assert (
        f"{state_dir}/storage"
        not in sandbox.commands.run("cat /proc/self/cgroup; ls -R /run").stdout
    )
    for path in (daemon.run_dir, daemon.state_dir, Path("/work"), Path("/.dockerenv")):
        assert not sandbox.files.exists(str(path))


def test_the_control_socket_cannot_be_reached(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    script = (
        "import os, socket, sys\n"
        "for path in sys.argv[1:]:\n"
        "  for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):\n"
        "    try: socket.socket(socket.AF_UNIX, kind).connect(path); print('connected', path)\n"
        "    except OSError: pass\n"
    )
    own = f"{daemon.run_dir}/sandboxes/{sandbox.sandbox_id}/init.sock"
    result = sandbox.commands.run(
        ["python3", "-c", script, daemon.socket, own, f"/proc/1/root{own}", f"/proc/1/cwd{own}"]
    )
    assert "connected" not in result.stdout
    # No descriptor of init's, of the daemon's or of a group came along: 3 is the listing's own.
    descriptors = sandbox.commands.run(["ls", "-l", "/proc/self/fd"]).stdout
    assert len(descriptors.splitlines()) == 1 + 4
    assert "socket" not in descriptors and "cgroup" not in descriptors


@pytest.mark.parametrize(
    "attempt",
    [
        "unshare -U true",
        "unshare -m true",
        "unshare -n true",
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "umount /proc",
        "chroot / mount -o remount,rw /proc/sys",
        "mknod /root/sda b 8 0 && cat /root/sda",
        "echo 1 > /proc/sys/kernel/panic",
        "echo x > /proc/sysrq-trigger",
        "echo core > /proc/sys/kernel/core_pattern",
        "dmesg",
        "echo 0 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
        "mkdir /sys/fs/cgroup/x",
        "nsenter -t 1 -m true",
        "date -s '2001-01-01'",
        "hostname other",
        "swapoff -a && swapon /dev/zero",
        "cat /proc/kcore | head -c 1 | grep .",
        "cat /dev/mem",
    ],
)
def test_what_only_the_node_may_do_fails(sandbox: Sandbox, attempt: str) -> None:
    result = sandbox.commands.run(attempt, check=False)
    assert result.exit_code != 0, result.stdout


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("unshare", 272),
        ("setns", 308),
        ("mount", 165),
        ("umount2", 166),
        ("pivot_root", 155),
        ("bpf", 321),
        ("io_uring_setup", 425),
        ("userfaultfd", 323),
        ("keyctl", 250),
        ("add_key", 248),
        ("perf_event_open", 298),
        ("vmsplice", 278),
        ("open_tree", 428),
        ("move_mount", 429),
        ("fsopen", 430),
        ("fsmount", 432),
        ("mount_setattr", 442),
        ("kexec_load", 246),
        ("init_module", 175),
        ("finit_module", 313),
        ("swapon", 167),
        ("reboot", 169),
        ("settimeofday", 164),
        ("open_by_handle_at", 304),
        ("name_to_handle_at", 303),
    ],
)
def test_system_calls_of_the_node_are_refused(sandbox: Sandbox, name: str, number: int) -> None:
    argument = 1 << 28 if name == "unshare" else 0  # CLONE_NEWUSER
    # perl is in every Debian base, and calls by number.
    outcome = sandbox.commands.run(
        ["perl", "-e", f"$r = syscall({number}, {argument}, 0, 0, 0, 0, 0); print $r, ' ', $! + 0"],
        check=False,
    )
    result, error = outcome.stdout.split()
    # EPERM or ENOSYS, and not the EFAULT, EINVAL or EBADF of a call that went through.
    assert (result, int(error) in (1, 38)) == ("-1", True), (name, outcome.stdout)


def test_capabilities_and_privileges(sandbox: Sandbox) -> None:
    status = sandbox.commands.run("cat /proc/self/status").stdout
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"
    effective = int(fields["CapEff"], 16)
    for forbidden in (1 << 21, 1 << 16, 1 << 17, 1 << 12, 1 << 19, 1 << 25, 1 << 40, 1 << 39):
        assert effective & forbidden == 0, hex(forbidden)
    assert int(fields["CapBnd"], 16) == int(fields["CapPrm"], 16) == effective
    assert int(fields["CapAmb"], 16) == 0


def test_a_setuid_program_raises_nobody(sandbox: Sandbox) -> None:
    sandbox.commands.run("cp /usr/bin/id /usr/bin/sid && chmod 4755 /usr/bin/sid")
    assert "euid=0" not in sandbox.commands.run("/usr/bin/sid", user="1000").stdout


def test_the_network_is_loopback_alone(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat /proc/net/dev | tail -n +3 | wc -l").stdout.strip() == "1"
    script = "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)"
    assert sandbox.commands.run(["python3", "-c", script], check=False).exit_code == 1


def test_host_ids_do_not_appear(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    sandbox.commands.run("echo x > /root/f; chown 1234:1234 /root/f")
    assert sandbox.commands.run("stat -c '%u %g' /root/f /etc/passwd").stdout == "1234 1234\n0 0\n"
    pid = sandbox.info.init_pid
    # On the host its processes have ids of the tenant's range, init's own files stay root's.
    host_id = os.stat(f"/proc/{pid}/root/root/f").st_uid
    assert host_id >= 65536 + 1234
