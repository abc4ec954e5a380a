"""Limits, time to live and metrics through a real daemon."""

from __future__ import annotations

import threading
import time

import pytest

from sandboxd.client import Daemon, Sandbox
from sandboxd.errors import InvalidRequest, NotFound, SandboxGone
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

MIB = 1 << 20


def eventually(condition: object, what: str, patience_s: float = 15.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("command", ["direct", "through a shell"])
def test_memory_is_limited_and_an_oom_kill_is_told_as_such(
    daemon: DaemonProcess, command: str
) -> None:
    hog = ["python3", "-c", "x = b'x' * 400_000_000"]
    with Sandbox.create(socket=daemon.socket, memory_bytes=64 * MIB) as sandbox:
        shell = ["sh", "-c", 'python3 -c "x = b\\"x\\" * 400000000"; exit $?']
        result = sandbox.commands.run(hog if command == "direct" else shell, check=False)
        assert result.reason.value == "oom"
        assert sandbox.metrics().oom_kills == 1
        assert request(daemon.socket, "GET", "/v1/info")[1]["counters"]["oom_kills"] > 0
        assert sandbox.metrics().memory_peak_bytes <= 64 * MIB
        # The sandbox outlives its victim, and the next end is not taken for another kill.
        again = sandbox.commands.run("kill -9 $$", check=False)
        assert again.reason.value == "signaled"


def test_memory_of_a_tmpfs_counts(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, memory_bytes=64 * MIB) as sandbox:
        result = sandbox.commands.run(
            "head -c 500000000 /dev/zero > /dev/shm/x; echo $?", check=False
        )
        assert result.stdout != "0\n"
        assert sandbox.metrics().memory_bytes <= 64 * MIB


def test_processes_are_limited(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, pids=16) as sandbox:
        script = (
            "import os, time\nn = 0\n"
            "try:\n  while True:\n    if os.fork() == 0: time.sleep(1000)\n    n += 1\n"
            "except BlockingIOError: print(n)\n"
        )
        result = sandbox.commands.run(["python3", "-c", script])
        assert 5 < int(result.stdout) < 16
        assert sandbox.metrics().pids <= 16


def test_cpu_is_limited(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, cpu_cores=0.2) as sandbox:
        begun = time.monotonic()
        sandbox.commands.run(
            ["python3", "-c", "import time\nwhile time.process_time() < 0.4: pass"], timeout=120
        )
        assert time.monotonic() - begun > 1.0


def test_disk_is_limited(daemon: DaemonProcess) -> None:
    if request(daemon.socket, "GET", "/v1/info")[1]["storage_backend"] != "btrfs":
        pytest.skip("the storage of this node cannot limit a disk")
    with Sandbox.create(socket=daemon.socket, disk_bytes=16 * MIB) as sandbox:
        result = sandbox.commands.run(
            "head -c 200000000 /dev/urandom > /root/x; sync; stat -c %s /root/x", check=False
        )
        assert "space" in result.stderr.lower() or "quota" in result.stderr.lower()
        assert int(result.stdout) < 32 * MIB
        with Sandbox.create(socket=daemon.socket) as other:
            other.files.write("/root/y", b"y" * MIB)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"limits": {"memory_bytes": 1}}, "memory_bytes"),
        ({"limits": {"memory_bytes": 1 << 50}}, "memory_bytes"),
        ({"limits": {"memory_bytes": 0}}, "memory_bytes"),
        ({"limits": {"pids": 1}}, "pids"),
        ({"limits": {"pids": 10**7}}, "pids"),
        ({"limits": {"cpu_cores": 1e-6}}, "cpu_cores"),
        ({"limits": {"cpu_cores": 1e6}}, "cpu_cores"),
        ({"limits": {"disk_bytes": 1}}, "disk_bytes"),
        ({"limits": {"disk_bytes": 1 << 60}}, "disk_bytes"),
        ({"limits": {"gpus": 1}}, "gpus"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 1e12}, "ttl_s"),
    ],
)
def test_limits_beyond_their_bounds_are_refused(
    daemon: DaemonProcess, body: dict[str, object], named: str
) -> None:
    status, answer = request(daemon.socket, "POST", "/v1/sandboxes", body)
    assert status == 400
    assert named in answer["error"]["object"]
    assert answer["error"]["operation"] and answer["error"]["cause"]


def test_limits_that_hold_are_told(daemon: DaemonProcess) -> None:
    with Sandbox.create(
        socket=daemon.socket, memory_bytes=100 * MIB, pids=50, cpu_cores=0.5, disk_bytes=64 * MIB
    ) as sandbox:
        limits = sandbox.get_info().limits
        assert (limits.memory_bytes, limits.pids, limits.cpu_cores) == (100 * MIB, 50, 0.5)
        assert limits.disk_bytes == 64 * MIB


def test_a_sandbox_expires(daemon: DaemonProcess) -> None:
    sandbox = Sandbox.create(socket=daemon.socket, timeout=1.0)
    expires_at = sandbox.get_info().expires_at
    assert expires_at is not None and 0 < expires_at - time.time() <= 1.0
    result = sandbox.commands.run("sleep 1000", check=False)
    assert (result.reason.value, result.exit.exit_code) == ("killed", None)
    with pytest.raises(SandboxGone, match="time to live"):
        sandbox.commands.run("true")
    eventually(
        lambda: sandbox.sandbox_id not in [each.id for each in Sandbox.list(socket=daemon.socket)],
        "the expired sandbox is still listed",
    )
    with pytest.raises(SandboxGone, match="time to live"):
        sandbox.get_info()


def test_a_time_to_live_can_be_moved_and_removed(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket, timeout=1.0) as sandbox:
        sandbox.set_timeout(None)
        assert sandbox.get_info().expires_at is None
        sandbox.set_timeout(3600)
        expires_at = sandbox.get_info().expires_at
        assert expires_at is not None and 3590 < expires_at - time.time() <= 3600
        time.sleep(1.1)  # beyond the first deadline, which must have no effect any more
        assert sandbox.is_running()
        with pytest.raises(InvalidRequest):
            sandbox.set_timeout(-1)


def test_destroying_ends_commands_and_is_told_to_later_requests(daemon: DaemonProcess) -> None:
    sandbox = Sandbox.create(socket=daemon.socket)
    results = []
    other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
    runner = threading.Thread(
        target=lambda: results.append(other.commands.run("sleep 1000", check=False))
    )
    runner.start()
    eventually(lambda: sandbox.metrics().execs_running == 1, "the command does not start")
    sandbox.kill()
    runner.join(10)
    assert [each.reason.value for each in results] == ["killed"]
    for call in (
        sandbox.get_info,
        sandbox.metrics,
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.files.read("/etc/passwd"),
    ):
        with pytest.raises(SandboxGone, match="destroyed"):
            call()
    with pytest.raises(NotFound):
        Sandbox.connect("sb-0000000000000000", socket=daemon.socket)


def test_metrics_move(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    before = sandbox.metrics()
    assert before.execs_running == 0 and before.memory_bytes > 0
    with sandbox.commands.run(
        ["python3", "-c", "x = bytearray(30_000_000)\nprint(1, flush=True)\ninput()"],
        True,
        stdin=True,
    ) as handle:
        next(iter(handle))
        during = sandbox.metrics()
        assert during.memory_bytes - before.memory_bytes > 25_000_000
        assert (during.execs_running, during.pids) == (1, before.pids + 1)
        assert during.cpu_s > before.cpu_s


def test_info_counts(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket) as client:
        before = client.info().counters
        with Sandbox.create(socket=daemon.socket, metadata={"a": "b"}, hostname="box") as sandbox:
            sandbox.commands.run("true")
            info = sandbox.get_info()
            assert (info.labels, info.hostname) == ({"a": "b"}, "box")
            assert sandbox.commands.run("hostname; cat /etc/hostname || true").stdout.startswith(
                "box\n"
            )
        after = client.info().counters
    risen = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert risen == {"sandboxes_created": 1, "sandboxes_destroyed": 1, "execs_started": 2}


def test_a_client_that_leaves_during_create_leaves_no_sandbox(daemon: DaemonProcess) -> None:
    import socket

    before = {each.id for each in Sandbox.list(socket=daemon.socket)}
    created = request(daemon.socket, "GET", "/v1/info")[1]["counters"]["sandboxes_created"]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(daemon.socket)
    connection.sendall(
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    connection.close()
    eventually(
        lambda: (
            request(daemon.socket, "GET", "/v1/info")[1]["counters"]["sandboxes_created"] > created
        ),
        "the request was not carried out",
    )
    eventually(
        lambda: {each.id for each in Sandbox.list(socket=daemon.socket)} == before,
        "a sandbox is left that nobody knows",
    )
