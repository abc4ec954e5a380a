"""This process's terminal as that of a command in a sandbox."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from types import FrameType

import click

from sandboxd.client import CommandHandle, PtySize, VenusError

_READ_BYTES = 65536
_MOST = 4096
_END_OF_INPUT = b"\x04"
_RESIZED, _STOPPED = b"r", b"s"


def own_size() -> PtySize:
    """Of the terminal at standard input; 24 by 80 without one, or where it has none."""
    try:
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
    except (OSError, ValueError):
        columns = rows = 0
    return (min(rows, _MOST) or 24, min(columns, _MOST) or 80)


class LeaveKeys:
    """Finds `~.` at the start of a line, by which a person leaves a raw terminal, as with ssh."""

    def __init__(self) -> None:
        self._state = "start"  # of a line; "tilde": held back; "inside"

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What goes to the command, and whether the person leaves."""
        passed = bytearray()
        for byte in typed:
            if self._state == "tilde":
                if byte == ord("."):
                    return bytes(passed), True
                passed += b"~"
                # `~~` is one of them.
                self._state = "inside"
                if byte == ord("~"):
                    continue
            elif self._state == "start" and byte == ord("~"):
                self._state = "tilde"
                continue
            passed.append(byte)
            self._state = "start" if byte in b"\r\n" else "inside"
        return bytes(passed), False


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Every key goes to the command, also ^C. The terminal is as before whatever ends the block."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise click.exceptions.Exit(128 + number)

    before = termios.tcgetattr(descriptor)
    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        # What was typed ahead is not thrown away.
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Typist:
    """A thread that passes on what is typed, and the terminal's size."""

    def __init__(self, handle: CommandHandle, descriptor: int, leave: Callable[[], None]) -> None:
        self._handle = handle
        self._descriptor = descriptor
        self._leave = leave
        self._keys = LeaveKeys() if os.isatty(descriptor) else None
        self._told, self._tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="venus-typist", daemon=True)

    def __enter__(self) -> _Typist:
        self._former = signal.signal(signal.SIGWINCH, lambda *_: self._say(_RESIZED))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._former)
        self._say(_STOPPED)
        # It may be waiting for a command that does not read; then it ends with this process.
        self._thread.join(1.0)

    def _say(self, what: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._tell, what)

    def _run(self) -> None:
        # The command's end is told by its output's; whatever fails here is no news.
        with contextlib.suppress(VenusError):
            watched = [self._descriptor, self._told]
            while True:
                readable, _, _ = select.select(watched, [], [])
                if self._told in readable:
                    said = os.read(self._told, 1024)
                    if _STOPPED in said:
                        return
                    with contextlib.suppress(VenusError):
                        self._handle.resize(own_size())
                if self._descriptor in readable and not self._pass_on():
                    watched.remove(self._descriptor)

    def _pass_on(self) -> bool:
        typed = os.read(self._descriptor, _READ_BYTES)
        if not typed:
            self._handle.send_stdin(_END_OF_INPUT)
            return False
        leaves = False
        if self._keys is not None:
            typed, leaves = self._keys.feed(typed)
        if typed:
            self._handle.send_stdin(typed)
        if leaves:
            self._leave()
        return not leaves


def converse(handle: CommandHandle) -> bool:
    """Until the command ends, or the person leaves it: False."""
    descriptor = sys.stdin.fileno()
    left = threading.Event()

    def leave() -> None:
        left.set()
        os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.ExitStack() as stack:
        if os.isatty(descriptor):
            stack.enter_context(_raw(descriptor))
        stack.enter_context(_Typist(handle, descriptor, leave))
        try:
            for output in handle:
                sys.stdout.buffer.write(output.data)
                sys.stdout.buffer.flush()
        except click.exceptions.Exit:
            if not left.is_set():
                raise
            return False
    return True
