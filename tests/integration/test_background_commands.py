"""Commands that need no client: started in the background, attached to, waited for."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from sandboxd.client import AsyncSandbox, CommandHandle, ExitReason, Output, Sandbox
from sandboxd.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, OperationTimeout
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

RING_BYTES = 256 << 10


def read_to(handle: CommandHandle, wanted: bytes, stream: str = "stdout") -> bytes:
    """The output up to and with `wanted`."""
    text = b""
    for output in handle:
        if output.stream == stream:
            text += output.data
        if wanted in text:
            return text
    raise AssertionError(f"it ended after {text[-200:]!r}")


def test_what_is_kept_then_what_comes_then_the_end(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("echo one; read x; echo $x; echo e >&2; exit 4", stdin=True)
    assert started.running and started.kept and not started.inherited
    with (
        sandbox.commands.connect(started.pid) as first,
        sandbox.commands.connect(exec_id=started.exec_id) as second,
    ):
        assert first.pid == second.pid == started.pid
        read_to(first, b"one\n")
        sandbox.commands.send_stdin(started.exec_id, b"two\n")
        read_to(second, b"one\ntwo\n")
        for handle in (first, second):
            list(handle)
            assert (handle.exit.exit_code, handle.exit.reason) == (4, ExitReason.EXITED)
    # All of it can still be had.
    result = sandbox.commands.connect(exec_id=started.exec_id).wait(check=False)
    assert (result.stdout, result.stderr, result.exit_code) == ("one\ntwo\n", "e\n", 4)
    assert result.exit.stdout_bytes == 8
    assert result.lost_bytes == 0
    assert sandbox.commands.output(started.exec_id, "stderr") == b"e\n"
    after = sandbox.commands.get(started.exec_id)
    assert (after.running, after.exit_code, after.reason) == (False, 4, ExitReason.EXITED)
    assert after.argv == ["/bin/sh", "-c", "echo one; read x; echo $x; echo e >&2; exit 4"]
    assert after in sandbox.commands.list()


def test_waiting_has_a_deadline(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("read x; exit 7", stdin=True)
    with pytest.raises(OperationTimeout, match="not ended"):
        sandbox.commands.wait(started.exec_id, timeout=0.05)
    ends = []
    waiter = threading.Thread(target=lambda: ends.append(sandbox.commands.wait(started.exec_id)))
    waiter.start()
    sandbox.commands.close_stdin(started.exec_id)
    waiter.join(20)
    assert [end.exit_code for end in ends] == [7]
    assert sandbox.commands.wait(started.exec_id).exit_code == 7
    with pytest.raises(NotFound):
        sandbox.commands.wait(12345)
    with pytest.raises(InvalidRequest, match="timeout_s"):
        sandbox.commands.wait(started.exec_id, timeout=1e6)


def test_signals_and_kills_by_id_and_by_pid(sandbox: Sandbox) -> None:
    script = "trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done"
    started = sandbox.commands.start(script)
    with sandbox.commands.connect(started.pid) as handle:
        read_to(handle, b"up\n")
    sandbox.commands.send_signal(started.exec_id, signal.SIGTERM)
    assert sandbox.commands.wait(started.exec_id).exit_code == 5
    started = sandbox.commands.start("sleep 300 & wait")
    assert sandbox.commands.kill(started.pid)
    assert sandbox.commands.wait(started.exec_id).reason is ExitReason.KILLED
    assert not sandbox.commands.kill(started.pid)
    assert not sandbox.commands.kill(exec_id=started.exec_id)
    assert sandbox.commands.run("pgrep sleep || true").stdout == ""


def test_a_timeout_and_the_memory_limit_are_reasons(daemon: DaemonProcess) -> None:
    with Sandbox.create(memory_bytes=64 << 20, socket=daemon.socket) as sandbox:
        late = sandbox.commands.start("setsid sleep 300 & sleep 300", timeout=0.3)
        assert sandbox.commands.wait(late.exec_id).reason is ExitReason.TIMEOUT
        big = sandbox.commands.start(["python3", "-c", "x = bytearray(256 << 20)"])
        assert sandbox.commands.wait(big.exec_id).reason is ExitReason.OOM


def test_without_a_reader_the_end_of_the_output_is_kept(sandbox: Sandbox) -> None:
    size = 3_000_000
    started = sandbox.commands.start(f"yes 0123456 | head -c {size}; echo end")
    assert sandbox.commands.wait(started.exec_id).stdout_bytes == size + 4
    kept = sandbox.commands.output(started.exec_id)
    assert len(kept) == RING_BYTES
    assert kept.endswith(b"0123456\nend\n")
    first, *others = list(sandbox.commands.connect(exec_id=started.exec_id))
    assert (first.lost, first.data) == (size + 4 - RING_BYTES, b"")
    assert b"".join(each.data for each in others) == kept


def test_a_client_that_left_goes_on_where_it_stood(sandbox: Sandbox) -> None:
    line = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; read x"
    handle = sandbox.commands.run(line, True, stdin=True, keep=True)
    text = b""
    # Again and again, as after a connection that was lost in the middle of an answer.
    while not text.endswith(b"19999\n"):
        output = next(iter(handle))
        assert output.lost == 0
        text += output.data
        handle.disconnect()
        handle.reconnect()
    handle.close_stdin()
    assert list(handle) == []
    assert text == b"".join(b"%d\n" % number for number in range(20000))
    assert handle.exit.exit_code == 1


def test_a_kept_command_has_the_pace_of_its_own_client(sandbox: Sandbox) -> None:
    size = 8 << 20
    handle = sandbox.commands.run(f"yes 0123456 | head -c {size}", True, keep=True)
    assert sandbox.commands.get(handle.exec_id).running
    # It waits for its own client alone.
    first = next(iter(handle))
    before = sandbox.commands.get(handle.exec_id).stdout_bytes
    assert before < size
    result = handle.wait()
    assert result.lost_bytes == 0
    assert len(first.data) + len(result.stdout_bytes) == size


def test_only_what_is_kept_can_be_attached_to(sandbox: Sandbox) -> None:
    with sandbox.commands.run("cat", True, stdin=True) as handle:
        [found] = sandbox.commands.list()
        assert (found.exec_id, found.kept) == (handle.exec_id, False)
        for attempt in (
            lambda: sandbox.commands.connect(handle.pid),
            lambda: sandbox.commands.wait(handle.exec_id),
            lambda: sandbox.commands.output(handle.exec_id),
        ):
            with pytest.raises(Conflict, match="not kept"):
                attempt()
    with pytest.raises(NotFound):
        sandbox.commands.connect(99999)
    with pytest.raises(ValueError, match="exactly one"):
        sandbox.commands.connect()


def test_a_child_does_not_hold_the_end(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("mkfifo /tmp/go; (read x < /tmp/go; echo late) & echo first")
    assert sandbox.commands.wait(started.exec_id).exit_code == 0
    with sandbox.commands.connect(exec_id=started.exec_id) as handle:
        assert list(handle) == [Output("stdout", b"first\n")]
        assert handle.exit.reason is ExitReason.EXITED


def test_ended_commands_are_remembered_up_to_a_bound(sandbox: Sandbox) -> None:
    ids = []
    for _ in range(66):
        started = sandbox.commands.start("true")
        sandbox.commands.wait(started.exec_id)
        ids.append(started.exec_id)
    # One counts as running until its pipes are seen to have ended.
    while sandbox.metrics().execs_running:
        pass
    known = [each.exec_id for each in sandbox.commands.list()]
    assert len(known) == 64
    assert known == sorted(known)
    assert ids[-1] in known
    with pytest.raises(NotFound):
        sandbox.commands.get(ids[0])


def test_readers_of_one_sandbox_are_bounded(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("sleep 300")
    handles = []
    with pytest.raises(LimitExceeded, match="max_readers_per_sandbox"):
        for _ in range(100):
            handles.append(sandbox.commands.connect(started.pid))
    assert len(handles) == 64
    for handle in handles:
        handle.disconnect()
    sandbox.commands.kill(started.pid)
    assert sandbox.commands.wait(started.exec_id).reason is ExitReason.KILLED


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "argv"),
        ({"argv": ["a"], "command": "b"}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"command": "a", "cwd": "relative"}, "cwd"),
        ({"command": "a", "timeout_s": 0}, "timeout_s"),
        ({"command": "a", "timeout_s": 1e9}, "timeout_s"),
        ({"command": "a", "nonsense": 1}, "nonsense"),
        ({"command": "a", "stdin": "stream"}, "stdin"),
        ({"command": "a", "env": {"A=B": "c"}}, "env"),
    ],
)
def test_a_refused_start_names_the_field(
    daemon: DaemonProcess, sandbox: Sandbox, body: dict[str, object], named: str
) -> None:
    path = f"/v1/sandboxes/{sandbox.sandbox_id}/execs"
    status, answer = request(daemon.socket, "POST", path, body)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert named in answer["error"]["object"]
    assert sandbox.commands.list() == []


def test_positions_that_were_never_reached_are_refused(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    started = sandbox.commands.start("echo x")
    sandbox.commands.wait(started.exec_id)
    path = f"/v1/sandboxes/{sandbox.sandbox_id}/execs/{started.exec_id}/attach?stdout_position="
    assert request(daemon.socket, "GET", f"{path}3")[0] == 400
    assert request(daemon.socket, "GET", f"{path}-1")[0] == 400
    assert request(daemon.socket, "GET", f"{path}2")[0] == 200


def test_commands_of_a_fork_can_be_attached_to(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("while read x; do echo $x; done; exit 3", stdin=True)
    sandbox.commands.send_stdin(started.exec_id, b"original\n")
    with sandbox.commands.connect(started.pid) as handle:
        read_to(handle, b"original\n")
    [fork] = sandbox.fork()
    with fork:
        with fork.commands.connect(started.pid) as handle:
            fork.commands.send_stdin(started.exec_id, b"fork\n")
            # The ring is the fork's own.
            assert read_to(handle, b"fork\n") == b"fork\n"
            fork.commands.close_stdin(started.exec_id)
            assert handle.wait(check=False).exit_code == 3
        assert fork.commands.wait(started.exec_id).exit_code == 3
    assert sandbox.commands.get(started.exec_id).running


def test_the_asynchronous_client_does_the_same(daemon: DaemonProcess) -> None:
    asyncio.run(asyncio.wait_for(asynchronous(daemon.socket), 60))


async def asynchronous(socket: str) -> None:
    async with await AsyncSandbox.create(socket=socket) as sandbox:
        commands = sandbox.commands
        started = await commands.start("echo up; cat; exit 2", stdin=True)
        async with await commands.connect(started.pid) as handle:
            assert (await anext(aiter(handle))).data == b"up\n"
            await commands.send_stdin(started.exec_id, b"more\n")
            assert (await anext(aiter(handle))).data == b"more\n"
            await handle.disconnect()
            await handle.reconnect()
            await handle.close_stdin()
            assert (await handle.wait(check=False)).exit_code == 2
        assert (await commands.wait(started.exec_id)).exit_code == 2
        assert await commands.output(started.exec_id) == b"up\nmore\n"
        assert (await commands.get(started.exec_id)).kept
        kept = await commands.run("sleep 300", True, keep=True)
        await kept.disconnect()
        assert await commands.kill(kept.pid)
        assert (await commands.wait(kept.exec_id)).reason is ExitReason.KILLED
        assert not await commands.kill(kept.pid)
