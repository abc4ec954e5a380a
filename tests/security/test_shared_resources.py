"""What sandboxes, tenants and the host share must not run out by the will of one of them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sandboxd.api.server import MAX_CONNECTIONS_PER_TENANT
from sandboxd.client import Sandbox
from sandboxd.errors import VenusError
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

MIB = 1 << 20
NS_GET_OWNER_UID = 0xB704
# Argument: how many; prints how many there were, then waits.
TAKE_INOTIFY_INSTANCES = (
    '$n = 0; $n++ while $n < $ARGV[0] and syscall(294, 0) >= 0; $| = 1; print "$n\\n"; sleep 60'
)


def owner_of_namespace(sandbox: Sandbox) -> int:
    descriptor = os.open(f"/proc/{sandbox.info.init_pid}/ns/user", os.O_RDONLY)
    try:
        answer = bytearray(4)
        fcntl.ioctl(descriptor, NS_GET_OWNER_UID, answer)
        return int.from_bytes(answer, sys.byteorder)
    finally:
        os.close(descriptor)


def connected(daemon: DaemonProcess) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    while True:
        try:
            connection.connect(daemon.socket)
        except BlockingIOError:  # the backlog is full: the daemon is accepting
            time.sleep(0.01)
        else:
            connection.settimeout(30)
            return connection


def test_counts_by_user_are_not_the_host_roots(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    """inotify instances stand for all that the kernel counts by user and charges to the owner of
    the user namespace as well."""
    assert owner_of_namespace(sandbox) >= 1 << 30
    with Sandbox.create(socket=daemon.socket) as other:
        greedy = sandbox.commands.run(["perl", "-e", TAKE_INOTIFY_INSTANCES, "1000"], True)
        next(iter(greedy))
        with other.commands.run(["perl", "-e", TAKE_INOTIFY_INSTANCES, "1"], True) as modest:
            assert next(iter(modest)).data == b"1\n"
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_CLOEXEC)
        assert descriptor >= 0, os.strerror(ctypes.get_errno())
        os.close(descriptor)
        greedy.kill()


FILL_SOCKETS = """
import socket
keep = []
for _ in range(500):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    keep.append(receiver)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setblocking(False)
    try:
        for _ in range(20):
            sender.sendto(bytes(60000), receiver.getsockname())
    except OSError:
        pass
    sender.close()
print(sum(int(line.split()[-1]) for line in open("/proc/net/sockstat") if "UDP: " in line))
"""


def test_buffers_of_sockets_count_as_memory(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, memory_bytes=64 * MIB) as sandbox:
        pages = sandbox.commands.run(["python3", "-c", FILL_SOCKETS]).stdout
        # The kernel counts them for the whole machine, which is idle but for this.
        assert int(pages) * 4096 < 128 * MIB


PIPES = """
import os, sys
pipes = [os.pipe() for _ in range(200)]
print("ready", flush=True)
for line in sys.stdin:
    more = [os.pipe() for _ in range(200)]
    for _, end in pipes + more: os.write(end, bytes(65536))
    print("written", flush=True)
"""


def test_pipes_of_all_sandboxes_of_a_tenant_are_whole(daemon: DaemonProcess) -> None:
    """To the kernel they are one user, who may have the pages of a thousand of them."""
    with Sandbox.create(socket=daemon.socket) as sandbox:
        handle = sandbox.commands.run(["python3", "-c", PIPES], True, stdin=True)
        assert next(iter(handle)).data == b"ready\n"
        forks = sandbox.fork(8)
        try:
            for fork in forks:
                fork.commands.send_stdin(handle.exec_id, b"\n")
            for fork in forks:
                deadline = time.monotonic() + 30
                while fork.commands.output(handle.exec_id) != b"written\n":
                    assert time.monotonic() < deadline, "it stands still in a full pipe"
                    time.sleep(0.02)
        finally:
            for fork in forks:
                fork.kill()


def test_asynchronous_io_contexts_are_not_taken_from_the_machine(sandbox: Sandbox) -> None:
    """There are fs.aio-max-nr of them for all, whoever asks."""
    script = '$c = "\\0" x 8; print syscall(206, 1000, $c), " ", $! + 0'
    assert sandbox.commands.run(["perl", "-e", script]).stdout == f"-1 {errno.ENOSYS}"


def test_init_keeps_its_limits(sandbox: Sandbox) -> None:
    """Init runs under the same uid as the sandbox's root, which is all that prlimit asks for."""
    script = (
        'my ($one, $tried) = (pack("QQ", 1, 1), "tried"); for my $resource (0 .. 15) {'
        ' $tried .= " $resource" if syscall(302, 1, $resource + 0, $one, 0) == 0 } print $tried'
    )
    assert sandbox.commands.run(["perl", "-e", script]).stdout == "tried"
    assert sandbox.commands.run("ulimit -n 100; ulimit -n").stdout == "100\n"


def test_groups_of_ended_background_processes_go(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    unified = [where for _, where, kind, *_ in mounts if kind == "cgroup2"]
    if not unified:
        pytest.skip("commands have groups of their own in a version 2 hierarchy only")
    group = Path(unified[-1]) / daemon.cgroup_parent / sandbox.sandbox_id

    for _ in range(30):
        sandbox.commands.run("sleep 0.2 >/dev/null 2>&1 &")
    time.sleep(0.5)
    for _ in range(30):
        sandbox.commands.run("true")
    assert len(list(group.glob("exec-*"))) <= 3


def test_headers_without_end_are_refused(daemon: DaemonProcess) -> None:
    before = psutil.Process(daemon.pid).memory_info().rss
    with connected(daemon) as connection, pytest.raises(OSError):
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n")
        for index in range(64):
            connection.sendall(b"X-%d: " % index + b"v" * MIB + b"\r\n")
    assert psutil.Process(daemon.pid).memory_info().rss - before < 16 * MIB
    assert request(daemon.socket, "GET", "/v1/health")[0] == 200


def test_idle_connections_of_one_tenant_leave_room(daemon: DaemonProcess) -> None:
    connections = [connected(daemon) for _ in range(MAX_CONNECTIONS_PER_TENANT)]
    try:
        with connected(daemon) as further:
            further.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert further.recv(4096).startswith(b"HTTP/1.1 429")
        with connections.pop() as freed:
            freed.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert freed.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("shared", ["state_dir", "cgroup_parent"])
def test_a_second_daemon_on_the_same_places_is_refused(
    daemon: DaemonProcess, sandbox: Sandbox, tmp_path: Path, shared: str
) -> None:
    """Without the refusal its recovery removes the sandboxes of the first one."""
    places = {
        "run_dir": f"/run/venus-second-{os.getpid()}",
        "state_dir": str(tmp_path / "state"),
        "cgroup_parent": f"venus-second-{os.getpid()}",
        "storage_backend": "auto" if shared == "state_dir" else "plain",
        shared: str(getattr(daemon, shared)),
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in places.items()]
    second = subprocess.Popen(
        [sys.executable, "-m", "sandboxd", *flags], stderr=subprocess.PIPE, text=True
    )
    try:
        _, log = second.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        second.terminate()
        _, log = second.communicate()
    assert second.returncode == 1 and "another daemon" in log, log
    assert sandbox.commands.run("touch /root/f && echo well").stdout == "well\n"
    assert not Path(places["run_dir"]).exists()


def test_the_environment_of_a_sandbox_fits_a_command(daemon: DaemonProcess) -> None:
    with pytest.raises(VenusError, match="env"):
        Sandbox.create(socket=daemon.socket, envs={f"V{n}": "x" * 1000 for n in range(1000)})
