"""Paused sandboxes: nothing runs in them, also over the death of the daemon."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import psutil
import pytest

from sandboxd.client import AsyncSandbox, ExitReason, Sandbox, SandboxState
from sandboxd.errors import Conflict, SandboxGone
from tests.kernel.test_daemon_recovery import eventually, restart
from tests.support.daemon import DaemonProcess
from tests.support.groups import is_frozen

BUSY = "while :; do :; done"


def test_nothing_runs_until_it_is_resumed(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    busy = sandbox.commands.run(BUSY, background=True)
    sandbox.pause()
    assert sandbox.info.state is SandboxState.PAUSED
    assert not sandbox.is_running()
    assert is_frozen(daemon.cgroup_parent, sandbox.sandbox_id)
    before = sandbox.metrics().cpu_s
    with Sandbox.create(socket=daemon.socket) as other:
        other.commands.run("true")
    assert sandbox.metrics().cpu_s == before
    sandbox.resume()
    assert sandbox.is_running()
    eventually(lambda: sandbox.metrics().cpu_s > before, "it does not go on")
    handle.send_stdin("x\n")
    assert handle.wait().stdout == "got x\n"
    busy.kill()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.commands.run("true"),
        lambda s: s.files.write("/root/f", "x"),
        lambda s: s.files.read("/etc/passwd"),
        lambda s: list(s.files.read_dir("/root")),
        lambda s: s.files.watch("/root").__enter__(),
        lambda s: s.snapshot(),
        lambda s: s.fork(),
        lambda s: s.pause(),
    ],
)
def test_what_needs_it_to_run_is_refused(
    sandbox: Sandbox, call: Callable[[Sandbox], object]
) -> None:
    sandbox.pause()
    with pytest.raises(Conflict, match="paused"):
        call(sandbox)
    sandbox.resume()
    with pytest.raises(Conflict, match="not paused"):
        sandbox.resume()
    assert sandbox.commands.run("echo on").stdout == "on\n"


def test_it_ends_as_any_other(daemon: DaemonProcess) -> None:
    for end in ("kill", "expire"):
        with Sandbox.create(socket=daemon.socket) as sandbox:
            busy = sandbox.commands.run(BUSY, background=True)
            sandbox.pause()
            if end == "kill":
                assert sandbox.kill()
            else:
                sandbox.set_timeout(0.01)
            eventually(lambda s=sandbox: _is_gone(s), "it is still there")  # type: ignore[misc]
            assert sandbox.info.init_pid is not None
            assert not psutil.pid_exists(sandbox.info.init_pid)
            assert busy.wait(check=False).reason in (ExitReason.KILLED, ExitReason.LOST)


def _is_gone(sandbox: Sandbox) -> bool:
    try:
        sandbox.get_info()
    except SandboxGone:
        return True
    return False


def test_a_daemon_that_starts_later_leaves_it_paused(daemon: DaemonProcess) -> None:
    with (
        Sandbox.create(socket=daemon.socket) as sandbox,
        Sandbox.create(socket=daemon.socket) as expiring,
    ):
        sleeper = sandbox.commands.run("echo $$ > /tmp/pid; exec sleep 1000", background=True)
        sandbox.commands.run("while ! [ -s /tmp/pid ]; do :; done")
        for each in (sandbox, expiring):
            each.pause()
        before = sandbox.get_info()
        restart(daemon)
        assert sandbox.get_info() == before
        assert is_frozen(daemon.cgroup_parent, sandbox.sandbox_id)
        with pytest.raises(Conflict, match="paused"):
            sandbox.commands.run("true")
        expiring.set_timeout(0.01)
        eventually(lambda: _is_gone(expiring), "its time does not end")
        restart(daemon)
        sandbox.resume()
        assert sandbox.commands.run("ps -o args= -p $(cat /tmp/pid)").stdout == "sleep 1000\n"
        [command] = sandbox.commands.list()
        assert command.running
        sleeper.disconnect()  # from a daemon that is gone
        [fork] = sandbox.fork()
        with fork:
            fork.commands.run("true")


def test_init_killed_while_it_is_paused(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.pause()
        restart(daemon)
        assert sandbox.info.init_pid is not None
        os.kill(sandbox.info.init_pid, signal.SIGKILL)  # takes effect when it is thawed
        with pytest.raises(SandboxGone, match="killed"):
            sandbox.resume()


def test_the_same_with_asyncio(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
            await sandbox.pause()
            assert sandbox.info.state is SandboxState.PAUSED
            await asyncio.gather(sandbox.metrics(), sandbox.set_timeout(100))
            await sandbox.resume()
            await sandbox.commands.run("true")

    asyncio.run(asyncio.wait_for(scenario(), 60))
