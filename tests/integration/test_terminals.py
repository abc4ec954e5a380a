"""Commands with a terminal of their own, through the daemon."""

from __future__ import annotations

import asyncio
import os

import pytest

from sandboxd.client import AsyncSandbox, ExitReason, Sandbox
from sandboxd.errors import Conflict
from tests.integration.test_background_commands import read_to
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

SIZE = (30, 100)


def test_it_is_a_terminal_of_the_sandbox_and_the_sessions_own(sandbox: Sandbox) -> None:
    script = "tty; stty size; ps -o pid=,sid=,tpgid=,tt= -p $$; echo $TERM; ls /dev/pts; exit 3"
    started = sandbox.commands.start(script, pty=SIZE)
    assert started.pty
    result = sandbox.commands.connect(exec_id=started.exec_id).wait(check=False)
    name, size, ids, term, *others = result.stdout.splitlines()
    assert (name, size, term) == ("/dev/pts/0", "30 100", "xterm-256color")
    pid, session, foreground, terminal = ids.split()
    assert pid == session == foreground == str(started.pid)
    assert terminal == "pts/0"
    assert others == ["0  ptmx"]
    assert (result.exit_code, result.stderr) == (3, "")
    assert "\r\n" in result.stdout


def test_input_control_characters_and_size(sandbox: Sandbox) -> None:
    script = "trap 'echo size $(stty size)' WINCH; echo up; while :; do read x; echo \"<$x>\"; done"
    with sandbox.commands.run(["sh", "-c", script], True, pty=SIZE) as handle:
        read_to(handle, b"up\r\n")
        handle.send_stdin(b"abc\x7fd\n")
        # What is typed is echoed; a line is edited before the program reads it.
        assert b"abc" in read_to(handle, b"<abd>\r\n")
        handle.resize((50, 120))
        read_to(handle, b"size 50 120\r\n")
        handle.send_stdin(b"\x03")
        assert handle.wait(check=False).signal == 2


def test_the_end_of_input_is_typed(sandbox: Sandbox) -> None:
    started = sandbox.commands.start(["cat"], pty=SIZE)
    with pytest.raises(Conflict, match="typed"):
        sandbox.commands.close_stdin(started.exec_id)
    sandbox.commands.send_stdin(started.exec_id, b"word\n\x04")
    with sandbox.commands.connect(exec_id=started.exec_id) as handle:
        assert handle.wait().stdout == "word\r\nword\r\n"


def test_all_of_the_output_comes_before_the_end(sandbox: Sandbox) -> None:
    line = "stty -opost; i=0; while [ $i -lt 5000 ]; do echo $i; i=$((i+1)); done"
    handle = sandbox.commands.run(line, True, pty=SIZE)
    result = handle.wait()
    assert result.stdout_bytes == b"".join(b"%d\n" % number for number in range(5000))
    assert result.lost_bytes == 0


def test_a_user_owns_the_terminal_that_it_gets(sandbox: Sandbox) -> None:
    for user in ("nobody", "1234:1234"):
        started = sandbox.commands.start(
            "stat -c '%u %a' $(tty); : > $(tty) && id -u", user=user, pty=SIZE
        )
        result = sandbox.commands.connect(exec_id=started.exec_id).wait()
        owner, me = result.stdout.splitlines()
        assert owner == f"{me} 620"
        assert me == ("65534" if user == "nobody" else "1234")


def test_what_is_left_is_hung_up_when_the_leader_ends(sandbox: Sandbox) -> None:
    # The child ignores the signal that the kernel sends when the leader ends; the terminal is gone
    # for it all the same, once the daemon has closed it.
    child = (
        "trap '' HUP; touch /tmp/up; while echo x 2>/dev/null; do sleep 0.05; done; touch /tmp/gone"
    )
    wait = "until [ -e /tmp/up ]; do sleep 0.01; done"
    started = sandbox.commands.start(f"({child}) & {wait}", pty=SIZE)
    assert sandbox.commands.wait(started.exec_id).reason is ExitReason.EXITED
    sandbox.commands.run("until [ -e /tmp/gone ]; do sleep 0.01; done", timeout=20)
    assert sandbox.commands.run("ls /dev/pts").stdout.split() == ["ptmx"]


def test_a_program_may_close_it_and_open_it_again(sandbox: Sandbox) -> None:
    script = (
        "exec 0</dev/null 1>/dev/null 2>/dev/null; until [ -e /tmp/go ]; do sleep 0.01; done;"
        "echo again > /dev/tty"
    )
    started = sandbox.commands.start(script, pty=SIZE)
    with sandbox.commands.connect(exec_id=started.exec_id) as handle:
        sandbox.commands.run("touch /tmp/go")
        assert handle.wait().stdout == "again\r\n"


def test_a_client_that_leaves_takes_its_terminal_along(sandbox: Sandbox) -> None:
    with sandbox.commands.run("echo up; sleep 300", True, pty=SIZE) as handle:
        read_to(handle, b"up\r\n")
    assert sandbox.commands.wait(handle.exec_id).reason is ExitReason.KILLED
    handle = sandbox.commands.run("echo up; cat", True, pty=SIZE, keep=True)
    read_to(handle, b"up\r\n")
    handle.disconnect()
    with sandbox.commands.connect(handle.pid) as again:
        again.send_stdin(b"still here\n")
        read_to(again, b"still here\r\nstill here\r\n")


@pytest.mark.parametrize(
    ("pty", "named"),
    [
        ({"rows": 0, "cols": 80}, "rows"),
        ({"rows": 24, "cols": 4097}, "cols"),
        ({"rows": 24}, "cols"),
        ({"rows": 24, "cols": 80, "depth": 1}, "depth"),
        ([24, 80], "pty"),
    ],
)
def test_a_wrong_size_is_refused(
    daemon: DaemonProcess, sandbox: Sandbox, pty: object, named: str
) -> None:
    path = f"/v1/sandboxes/{sandbox.sandbox_id}/execs"
    status, answer = request(daemon.socket, "POST", path, {"command": "true", "pty": pty})
    assert status == 400
    assert named in answer["error"]["object"]


def test_only_a_terminal_can_be_resized(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("sleep 300")
    with pytest.raises(Conflict, match="no terminal"):
        sandbox.commands.resize(started.exec_id, SIZE)
    sandbox.commands.kill(started.pid)


def test_terminals_are_given_back(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    ids = [sandbox.commands.start("cat", pty=SIZE).exec_id for _ in range(5)]
    assert len(sandbox.commands.run("ls /dev/pts").stdout.split()) == 6
    files = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    for exec_id in ids:
        sandbox.commands.send_stdin(exec_id, b"\x04")
        assert sandbox.commands.wait(exec_id).exit_code == 0
    while len(sandbox.commands.run("ls /dev/pts").stdout.split()) > 1:
        pass
    while len(os.listdir(f"/proc/{daemon.pid}/fd")) > files - 10:
        pass


def test_a_fork_has_a_terminal_of_its_own(sandbox: Sandbox) -> None:
    script = 'while read -r x; do echo "$x in $(tty) $(stty size)"; done; echo done'
    started = sandbox.commands.start(script, pty=SIZE)
    with sandbox.commands.connect(started.pid) as original:
        sandbox.commands.send_stdin(started.exec_id, b"one\n")
        read_to(original, b"one in /dev/pts/0 30 100\r\n")
        # Half a line, which the fork's terminal has, too.
        sandbox.commands.send_stdin(started.exec_id, b"tw")
        read_to(original, b"tw")
        forks = sandbox.fork(2)
        try:
            for number, fork in enumerate(forks):
                [found] = fork.commands.list()
                assert (found.exec_id, found.pty, found.inherited) == (started.exec_id, True, True)
                with fork.commands.connect(started.pid) as handle:
                    handle.resize((40 + number, 90))
                    handle.send_stdin(b"o\n")
                    read_to(handle, b"two in /dev/pts/0 %d 90\r\n" % (40 + number))
                    handle.send_stdin(b"\x04")
                    assert handle.wait().stdout.endswith("done\r\n")
        finally:
            for fork in forks:
                fork.kill()
        sandbox.commands.send_stdin(started.exec_id, b"elve\n")
        read_to(original, b"twelve in /dev/pts/0 30 100\r\n")
    # Its output was written while nobody looked; a template carries it just as well.
    template = sandbox.snapshot()
    try:
        with Sandbox.create(template=template, socket=sandbox.commands._transport.socket) as later:
            with later.commands.connect(started.pid) as handle:
                handle.send_stdin(b"later\n")
                read_to(handle, b"later in /dev/pts/0 30 100\r\n")
            assert later.commands.kill(started.pid)
            assert later.commands.wait(started.exec_id).reason is ExitReason.KILLED
            assert later.commands.run("ls /dev/pts").stdout.split() == ["ptmx"]
    finally:
        template.remove()


def test_the_asynchronous_client_has_terminals(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
            handle = await sandbox.commands.run("read x; stty size", True, pty=SIZE)
            await handle.resize((20, 60))
            await handle.send_stdin(b"\n")
            assert (await handle.wait()).stdout.splitlines()[-1] == "20 60"

    asyncio.run(asyncio.wait_for(scenario(), 60))
