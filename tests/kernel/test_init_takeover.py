"""Sandbox-init outlives its daemon: a later one takes over what runs, and no peer can harm it."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import init_protocol as protocol
from tests.support.init_harness import ENV, RawSandbox, StartFailed, default_ops, pump


@pytest.fixture
def sandbox(rootfs: Path, tmp_path: Path) -> Iterator[RawSandbox]:
    with RawSandbox(rootfs, tmp_path / "sandbox") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawSandbox]:
    with RawSandbox(rootfs, tmp_path_factory.mktemp("init") / "sandbox") as sandbox:
        yield sandbox


def start_streaming(sandbox: RawSandbox, *argv: str, timeout_ms: int = 0) -> int:
    """An exec all of whose pipes are kept by init; this side closes its ends, as if it died."""
    stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    err_read, err_write = os.pipe2(os.O_CLOEXEC)
    fds = protocol.ExecFds(stdin_read, out_write, err_write, stdin_write, out_read, err_read)
    exec_id = sandbox.start(*argv, fds=fds, timeout_ms=timeout_ms)
    for fd in fds.in_order():
        os.close(fd)
    return exec_id


def take_over(sandbox: RawSandbox) -> dict[int, tuple[protocol.ExecInfo, list[int]]]:
    sandbox.client.close()
    sandbox.client = sandbox.connect()
    assert sandbox.client.hello().sandbox_id == "test-sandbox"
    return {info.exec_id: (info, fds) for info, fds in sandbox.client.list()}


def test_streams_go_on_under_the_next_daemon(sandbox: RawSandbox) -> None:
    exec_id = start_streaming(sandbox, "/bin/sh", "-c", "echo first; cat; echo last >&2; exit 5")
    info, fds = take_over(sandbox)[exec_id]
    assert info.state is protocol.ExecState.RUNNING
    assert info.exited is None
    keep = protocol.FdBit.KEEP_STDIN | protocol.FdBit.KEEP_STDOUT | protocol.FdBit.KEEP_STDERR
    assert info.fd_mask == keep
    stdin, out, err = fds
    # Init drops its copy of the writing end; only then does closing ours end the input.
    assert sandbox.client.stdin_closed(exec_id) == 0
    outputs = pump({out: b"", err: b""}, stdin, b"given by the second daemon\n")
    assert outputs[out] == b"first\ngiven by the second daemon\n"
    assert outputs[err] == b"last\n"
    assert sandbox.client.wait_exit(exec_id).exit_code == 5
    assert sandbox.client.release(exec_id) == 0
    for fd in (out, err):
        os.close(fd)


def enter_restored(sandbox: RawSandbox, pid: int) -> int:
    """A command of a fork to be, with a pipe that the daemon's successor must get."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    request = protocol.ExecRequest(
        sandbox.exec_id(), ("restored",), kind=protocol.ExecKind.RESTORED, number0=pid
    )
    try:
        started = sandbox.client.start(request, protocol.ExecFds(keep_stdout=read_end))
        assert started == pid
    finally:
        os.close(read_end)
        os.close(write_end)
    return request.exec_id


def test_a_terminal_comes_with_the_start_and_is_kept(sandbox: RawSandbox) -> None:
    request = protocol.ExecRequest(
        sandbox.exec_id(), ("/bin/sh", "-c", "read x; stty size; exit 4"), env=ENV, terminal=(9, 33)
    )
    number = sandbox.client.request_id()
    sandbox.client.send(protocol.encode_exec(number, request, protocol.ExecFds()))
    started, [master] = sandbox.client.receive()
    assert isinstance(started, protocol.Started)
    os.close(master)
    info, [master] = take_over(sandbox)[request.exec_id]
    assert (info.state, info.fd_mask) == (
        protocol.ExecState.RUNNING,
        protocol.FdBit.KEEP_STDOUT,
    )
    assert os.isatty(master)
    os.write(master, b"go\n")
    assert sandbox.client.wait_exit(request.exec_id).exit_code == 4
    written = b""
    while not written.endswith(b"9 33\r\n"):
        written += os.read(master, 100)
    assert sandbox.client.release(request.exec_id) == 0
    os.close(master)
    assert sandbox.run("/bin/ls", "/dev/pts").stdout == b"ptmx\n"


def keep_terminal(sandbox: RawSandbox, exec_id: int, fd: int) -> int:
    number = sandbox.client.request_id()
    sandbox.client.send(protocol.encode_keep_terminal(number, exec_id), [fd])
    answer = sandbox.client.answer(number)
    assert isinstance(answer, protocol.Ack)
    return answer.errno


def test_only_a_terminal_can_be_kept_as_one(sandbox: RawSandbox) -> None:
    sandbox.client.hello()
    before = os.listdir(f"/proc/{sandbox.pid}/fd")
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    assert keep_terminal(sandbox, 77, read_end) == errno.ENOENT
    exec_id = sandbox.start("/bin/sh", "-c", "sleep 1000")
    during = len(os.listdir(f"/proc/{sandbox.pid}/fd"))
    assert keep_terminal(sandbox, exec_id, read_end) == errno.ENOTTY
    assert len(os.listdir(f"/proc/{sandbox.pid}/fd")) == during
    sandbox.client.kill(exec_id)
    sandbox.client.wait_exit(exec_id)
    sandbox.client.release(exec_id)
    assert os.listdir(f"/proc/{sandbox.pid}/fd") == before
    os.close(read_end)
    os.close(write_end)


def test_without_a_devpts_there_is_no_terminal(rootfs: Path, tmp_path: Path) -> None:
    ops = [
        each
        for each in default_ops()
        if not (isinstance(each, protocol.Mount) and each.fstype == "devpts")
    ]
    with RawSandbox(rootfs, tmp_path / "sandbox", ops=ops) as sandbox:
        request = protocol.ExecRequest(sandbox.exec_id(), ("/bin/true",), terminal=(1, 1))
        with pytest.raises(StartFailed, match="TERMINAL"):
            sandbox.client.start(request)
        assert sandbox.run("/bin/true").code == 0


def test_a_command_of_a_restore_is_kept_before_it_lives_and_after_its_leader(
    sandbox: RawSandbox,
) -> None:
    to_come, leaderless = enter_restored(sandbox, 77), enter_restored(sandbox, 0)
    listed = take_over(sandbox)
    for exec_id, state in (
        (to_come, protocol.ExecState.RUNNING),
        (leaderless, protocol.ExecState.EXITED),
    ):
        info, fds = listed[exec_id]
        assert (info.state, info.kind) == (state, protocol.ExecKind.RESTORED)
        assert info.fd_mask == protocol.FdBit.KEEP_STDOUT
        for fd in fds:
            os.close(fd)
    assert sandbox.client.release(to_come) == errno.EBUSY
    assert sandbox.client.kill(to_come, whole_tree=False) == errno.ESRCH
    assert sandbox.client.release(leaderless) == 0
    assert sandbox.run("/bin/true").code == 0


def test_an_end_without_daemon_is_told_later(sandbox: RawSandbox) -> None:
    exec_id = start_streaming(sandbox, "/bin/sh", "-c", "read line; echo $line; exit 9")
    _, fds = take_over(sandbox)[exec_id]
    sandbox.client.close()
    os.write(fds[0], b"late\n")
    assert os.read(fds[1], 100) == b"late\n"
    for fd in fds:
        os.close(fd)
    sandbox.client = sandbox.connect()
    # Nothing else tells when init has reaped it; LIST is bounded by the client's own time limit.
    while (found := take_over(sandbox)[exec_id])[0].state is not protocol.ExecState.EXITED:
        for fd in found[1]:
            os.close(fd)
    info, fds = found
    assert info.exited is not None and info.exited.exit_code == 9
    assert len(fds) == 3
    for fd in fds:
        os.close(fd)
    assert sandbox.client.release(exec_id) == 0
    assert take_over(sandbox) == {}


def test_timeouts_hold_without_daemon(sandbox: RawSandbox) -> None:
    exec_id = start_streaming(sandbox, "/bin/sh", "-c", "setsid sleep 1000", timeout_ms=400)
    (info, fds) = take_over(sandbox)[exec_id]
    assert info.timeout_ms == 400 and info.remaining_ms <= 400
    sandbox.client.close()
    assert pump({fds[1]: b"", fds[2]: b""}, -1, b"") == {fds[1]: b"", fds[2]: b""}
    for fd in fds:
        os.close(fd)
    sandbox.client = sandbox.connect()
    while (found := take_over(sandbox)[exec_id])[0].state is not protocol.ExecState.EXITED:
        for fd in found[1]:
            os.close(fd)
    assert found[0].exited is not None and found[0].exited.timed_out
    for fd in found[1]:
        os.close(fd)


def test_the_newest_connection_wins(sandbox: RawSandbox) -> None:
    old = sandbox.client
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    fds = protocol.ExecFds(stdin=read_end)
    exec_id = sandbox.start("/bin/sh", "-c", "read line; exit 4", fds=fds)
    os.close(read_end)
    sandbox.client = sandbox.connect()
    sandbox.client.hello()
    with pytest.raises(ConnectionError):
        old.receive()
    old.close()
    os.close(write_end)
    assert sandbox.client.wait_exit(exec_id).exit_code == 4


def test_a_reader_that_does_not_read_loses_nothing(sandbox: RawSandbox) -> None:
    """Init keeps what does not fit the socket, and goes on reaping meanwhile."""
    sandbox.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    first = sandbox.exec_id()
    sandbox._next_exec += 400
    for exec_id in range(first, first + 400):
        request = protocol.ExecRequest(exec_id, ("/bin/true",), env=ENV)
        sandbox.client.send(protocol.encode_exec(exec_id, request, protocol.ExecFds()))
    started: set[int] = set()
    exited: set[int] = set()
    while len(exited) < 400:
        message, _ = sandbox.client.receive()
        if isinstance(message, protocol.Started):
            started.add(message.exec_id)
        else:
            assert isinstance(message, protocol.Exited)
            assert message.exec_id in started
            exited.add(message.exec_id)
    assert len(sandbox.client.list()) == 400
    for exec_id in exited:
        assert sandbox.client.release(exec_id) == 0


def header(kind: int, size: int, request_id: int = 7, version: int = 1) -> bytes:
    return struct.pack("<HHIQ", version, kind, size, request_id)


def exec_packet(**changes: int) -> bytes:
    fields = {
        "exec_id": 1,
        "kind": 0,
        "flags": 0,
        "fd_mask": 0,
        "procs": 0,
        "timeout": 0,
        "rlimits": 0,
        "argc": 1,
        "envc": 0,
        "n0": 0,
        "n1": 0,
        "size": 12,
        "reserved": 0,
    } | changes
    body = struct.pack("<QIIIIIIIIQQII", *fields.values()) + b"\0/\0/bin/true"[:11] + b"\0"
    return header(2, len(body)) + body


MALFORMED = {
    "one byte": b"x",
    "short header": header(1, 0)[:-1],
    "other version": header(1, 0, version=2),
    "unknown type": header(99, 0),
    "an answer": header(0x82, 16) + b"\0" * 16,
    "payload too short": header(3, 16) + b"\0" * 15,
    "payload size lies": header(1, 500),
    "hello with payload": header(1, 4) + b"\0" * 4,
    "kill with signal 0": header(3, 16) + struct.pack("<QII", 1, 0, 0),
    "kill with signal 65": header(3, 16) + struct.pack("<QII", 1, 65, 0),
    "exec without payload": header(2, 0),
    "exec id 0": exec_packet(exec_id=0),
    "unknown kind": exec_packet(kind=77),
    "flags": exec_packet(flags=2),
    "a terminal for a file operation": exec_packet(flags=1, kind=1),
    "a terminal beside a pipe": exec_packet(flags=1, fd_mask=1),
    "too many rows": exec_packet(flags=1, n0=65536),
    "a terminal to keep, none sent": header(8, 8) + struct.pack("<Q", 1),
    "unknown fd bit": exec_packet(fd_mask=1 << 20),
    "fds promised, none sent": exec_packet(fd_mask=7),
    "cgroups without bit": exec_packet(procs=2),
    "too many cgroups": exec_packet(fd_mask=64, procs=1000),
    "no argv": exec_packet(argc=0),
    "more argv than strings": exec_packet(argc=2),
    "argc overflow": exec_packet(argc=2**32 - 1, envc=2),
    "too many rlimits": exec_packet(rlimits=2**32 - 1),
    "rlimits beyond the packet": exec_packet(rlimits=16),
    "strings beyond the packet": exec_packet(size=2**32 - 1),
    "strings not terminated": exec_packet()[:-1] + b"x",
    "rename with one path": exec_packet(kind=7),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_packets_are_refused(shared: RawSandbox, name: str) -> None:
    shared.client.send(MALFORMED[name])
    answer, _ = shared.client.receive()
    assert isinstance(answer, protocol.RequestError), answer
    assert answer.errno != 0
    assert shared.client.hello().exec_count == 0


def test_descriptors_that_nobody_asked_for_are_closed(shared: RawSandbox) -> None:
    shared.client.hello()
    before = os.listdir(f"/proc/{shared.pid}/fd")
    for packet, count in (
        (protocol.encode_hello(7), 3),
        (exec_packet(), 2),
        (exec_packet(), 200),
        (b"x", 1),
    ):
        shared.client.send(packet, [0] * count)
        answer, _ = shared.client.receive()
        assert isinstance(answer, protocol.RequestError)
    assert os.listdir(f"/proc/{shared.pid}/fd") == before


def test_random_packets_do_not_kill_init(shared: RawSandbox) -> None:
    """Mutations of valid packets. SHUTDOWN and valid EXECs may come out of them: not sent."""
    rng = random.Random(1)
    valid = [
        protocol.encode_hello(7),
        protocol.encode_list(7),
        protocol.encode_kill(7, 1, 9, whole_tree=True),
        protocol.encode_release(7, 1),
        exec_packet(argc=3),
        exec_packet(fd_mask=7),
    ]
    for _ in range(2000):
        packet = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 4)):
            packet[rng.randrange(len(packet))] = rng.choice(
                (0, 1, 127, 128, 255, rng.randrange(256))
            )
        del packet[rng.randint(1, len(packet)) :]
        if packet[2:4] == b"\x07\x00":
            continue
        shared.client.send(bytes(packet))
        shared.client.receive()
    assert isinstance(shared.client.hello(), protocol.HelloReply)


def test_a_packet_beyond_the_limit_is_refused(shared: RawSandbox) -> None:
    shared.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    body = b"\0" * protocol.MAX_PACKET_SIZE
    shared.client.send(header(2, len(body)) + body)
    answer, _ = shared.client.receive()
    assert isinstance(answer, protocol.RequestError)
    assert answer.errno == errno.EMSGSIZE


def test_the_biggest_exec_works_and_leaves_init_small(shared: RawSandbox) -> None:
    argument = "x" * 100_000
    done = shared.run("/bin/sh", "-c", "echo ${#1} ${#2}", "sh", argument, argument)
    assert done.stdout == b"100000 100000\n"
    shared.client.hello()
    rollup = Path(f"/proc/{shared.pid}/smaps_rollup").read_text()
    rss_kib = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Rss"))
    assert rss_kib < 200, rollup
