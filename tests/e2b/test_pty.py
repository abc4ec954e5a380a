"""Terminals, through the SDK for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
)
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox_sync.commands.command_handle import CommandHandle


def shown_until(handle: CommandHandle, mark: bytes) -> bytes:
    """What the terminal shows, up to the mark."""
    shown = b""
    for _, _, pty in handle:
        shown += pty or b""
        if mark in shown:
            return shown
    raise AssertionError(f"it ended without {mark!r}: {shown!r}")


def test_a_terminal_is_typed_in_and_resized(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), cwd="/usr", envs={"MARK": "here"})
    # What is typed is echoed with the quotes, and said without.
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $MARK; pwd; tty; echo en''d\n")
    shown = shown_until(terminal, b"end\r\n")
    for said in (b"24 80\r\n", b"here\r\n", b"/usr\r\n", b"/dev/pts/"):
        assert said in shown
    sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=120))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $TERM; echo en''d\n")
    shown = shown_until(terminal, b"end\r\n")
    assert b"50 120\r\n" in shown and b"xterm-256color\r\n" in shown
    sandbox.pty.send_stdin(terminal.pid, b"exit 7\n")
    with pytest.raises(CommandExitException) as caught:
        terminal.wait()
    assert caught.value.exit_code == 7


def test_a_key_interrupts(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"echo star''ted; sleep 1000\n")
    shown_until(terminal, b"started\r\n")
    sandbox.pty.stream_input(terminal.pid, [b"\x03", b"echo code $", b"?\n"])
    shown_until(terminal, b"code 130\r\n")
    assert sandbox.pty.kill(terminal.pid) is True
    with pytest.raises(CommandExitException):
        terminal.wait()
    assert sandbox.pty.kill(terminal.pid) is False


def test_a_terminal_is_connected_to(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    terminal.disconnect()
    [known] = sandbox.commands.list()
    assert known.pid == terminal.pid
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.send_stdin(again.pid, b"echo en''d\n")
    shown_until(again, b"end\r\n")
    assert again.kill() is True
    with pytest.raises(CommandExitException):
        again.wait()
    with pytest.raises(NotFoundException):
        sandbox.pty.connect(terminal.pid)
    with pytest.raises(NotFoundException):
        sandbox.pty.resize(terminal.pid, PtySize(rows=1, cols=1))


def test_what_is_no_terminal_is_refused(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    with pytest.raises(SandboxException, match="no terminal"):
        sandbox.pty.resize(handle.pid, PtySize(rows=24, cols=80))
    with pytest.raises(SandboxException, match="stdin"):
        sandbox.pty.send_stdin(handle.pid, b"x")
    for rows in (0, 1 << 20):
        with pytest.raises(InvalidArgumentException, match="rows"):
            sandbox.pty.create(PtySize(rows=rows, cols=80))
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    with pytest.raises(SandboxException, match="pty"):
        sandbox.commands.send_stdin(terminal.pid, "x")
    with pytest.raises(SandboxException, match="closed"):
        sandbox.commands.close_stdin(terminal.pid)


def test_terminals_of_asyncio() -> None:
    async def run() -> None:
        async with await AsyncSandbox.create() as sandbox:
            shown = bytearray()
            changed = asyncio.Event()

            def on_data(data: bytes) -> None:
                shown.extend(data)
                changed.set()

            async def until(mark: bytes) -> None:
                while mark not in shown:
                    changed.clear()
                    await changed.wait()

            terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=on_data)
            await sandbox.pty.send_stdin(terminal.pid, b"stty size; echo en''d\n")
            await until(b"end\r\n")
            assert b"24 80\r\n" in shown
            await sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=90))
            await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
            await until(b"30 90\r\n")
            connected = await sandbox.pty.connect(terminal.pid, on_data=lambda _: None)
            assert await sandbox.pty.kill(terminal.pid) is True
            for each in (terminal, connected):
                with contextlib.suppress(CommandExitException):
                    await each.wait()
                assert each.exit_code == -1
            assert await sandbox.pty.kill(terminal.pid) is False

    asyncio.run(run())
