"""The daemon's ends of a command's pipes, or of its terminal, on the event loop.

`OutputPipe` is read by one consumer, or drained: to nowhere, when the daemon holds at most one
chunk of it, or into an `OutputRing`, which keeps the end. `InputPipe` is written with the command's
own pace as backpressure.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import termios
from collections.abc import Callable

from sandboxd.output_ring import OutputRing

CHUNK_BYTES = 64 * 1024
# A background process that writes without end must not keep the loop busy: about 25 MB/s each.
_DRAIN_BYTES = 256 * 1024
_DRAIN_PAUSE_S = 0.01
_EMPTIED_PAUSE_S = _DRAIN_PAUSE_S * CHUNK_BYTES / _DRAIN_BYTES
"""A pipe holds less, and is full again at once."""
# More than a terminal holds of what its programs have written.
_TERMINAL_REST_BYTES = 128 * 1024


# For what nobody reads. Opened at once: also a daemon that has no descriptor left can discard.
_NULL_DEVICE = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def command_pipe() -> tuple[int, int]:
    """Read and write end of a pipe between the daemon and a command of any user."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # The pipe belongs to the host's root, whom a sandbox does not know: without this, a script's
    # `echo … > /dev/stderr`, which opens the pipe anew, is refused. Only its holders can name it.
    os.fchmod(write_end, 0o666)
    return read_end, write_end


class OutputPipe:
    """The read end of a command's stdout or stderr, or the master of its terminal. Owns the
    descriptor."""

    def __init__(self, fd: int, wake: Callable[[], None], *, is_terminal: bool = False) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._is_terminal = is_terminal
        self._armed = False
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._hold_at: int | None = None
        self._rest: int | None = None
        self.eof = False
        self.finished = False
        """All that its leader's life has left in it is in the ring."""
        self.total_bytes = 0
        self.ring: OutputRing | None = None

    @property
    def fd(self) -> int:
        """The descriptor; only while not `eof`."""
        return self._fd

    def read(self) -> bytes:
        """What is there, at most one chunk; nothing when `wake` will run later, or at the end."""
        if self._armed or self.eof:
            return b""
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            self._arm()
            return b""
        if not data:
            self.close()
        self.total_bytes += len(data)
        return data

    def waiting_bytes(self) -> int:
        """How much a reader finds now; what is written later does not count."""
        if self.eof:
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count)
        return count[0]

    def read_waiting(self, limit: int) -> bytes:
        """As `read`, but never waits: for the rest after the command's exit."""
        self._disarm()
        if self.eof:
            return b""
        try:
            data = os.read(self._fd, min(limit, CHUNK_BYTES))
        except BlockingIOError:
            return b""
        if not data:
            self.close()
        self.total_bytes += len(data)
        return data

    def read_end_of_file(self) -> None:
        """Close if no writer is left, so that nothing has to wait for that later."""
        if not self.eof and self.waiting_bytes() == 0:
            self.read_waiting(1)

    def drain(self, ring: OutputRing | None = None) -> None:
        """Take all that comes, until the last writer closes; then `wake` runs."""
        self.ring = ring or self.ring
        self._disarm()
        if not self.eof:
            self._draining = True
            self._arm()

    def hold_at(self, position: int | None) -> None:
        """Drain up to this position only, for a reader that is waited for; None: all that comes."""
        self._hold_at = position
        if self._draining and not self._armed:
            self._drain_after(0)

    def finish(self, *, at_once: bool = False) -> None:
        """The leader has ended: what is there now, and no more, belongs to its output. `at_once`:
        do not wait for any reader. Once that is drained `finished` is true, and `wake` runs."""
        if at_once:
            self._hold_at = None
        if self._rest is None and not self.finished:
            self._rest = _TERMINAL_REST_BYTES if self._is_terminal else self.waiting_bytes()
        self._disarm()
        self._drain_some()

    def close(self) -> None:
        """Idempotent. Writers that are left get SIGPIPE; the programs of a terminal SIGHUP."""
        self._disarm()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.eof:
            self.eof = True
            os.close(self._fd)
        self.finished = True

    def _on_readable(self) -> None:
        self._disarm()
        if self._draining:
            self._drain_some()
        else:
            self._wake()

    def _drain_after(self, delay_s: float) -> None:
        if self._timer is None and not self.eof:
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._armed:
            self._drain_some()

    def _drain_some(self) -> None:
        if self.eof:
            return
        wanted = _DRAIN_BYTES if self._rest is None else self._rest
        allowed = wanted
        if self._hold_at is not None:
            allowed = max(0, min(wanted, self._hold_at - self.total_bytes))
        left = allowed
        while left > 0:
            count = self._take(left)
            if count is None:
                self._rest_is_read()
                if left < allowed and self._hold_at is None:
                    self._drain_after(_EMPTIED_PAUSE_S)
                else:
                    self._arm()
                return
            if count == 0:
                self.close()
                self._wake()
                return
            left -= count
            self.total_bytes += count
        if self._rest is not None:
            self._rest -= allowed
            if self._rest == 0:
                self._rest_is_read()
        if allowed or not wanted:
            self._drain_after(_DRAIN_PAUSE_S)

    def _rest_is_read(self) -> None:
        if self._rest is not None:
            self._rest = None
            self.finished = True
            self._wake()

    def _take(self, limit: int) -> int | None:
        """How many bytes were taken; 0 at the end, None when there are none now."""
        try:
            if self.ring is None:
                flags = os.SPLICE_F_NONBLOCK
                return os.splice(self._fd, _NULL_DEVICE, limit, flags=flags)
            data = os.read(self._fd, min(limit, CHUNK_BYTES))
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO and self._is_terminal:
                return 0  # it has hung up
            raise
        self.ring.add(data)
        return len(data)

    def _arm(self) -> None:
        if not self._armed and not self.eof:
            self._armed = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            self._loop.remove_reader(self._fd)


class InputPipe:
    """The write end of a command's stdin. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._writable: asyncio.Future[None] | None = None
        self.writers = 0
        """How many `write` at once."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.closed = False

    def write_now(self, data: bytes) -> int:
        """As much as the pipe takes at once."""
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0

    async def write(self, data: bytes | memoryview) -> None:
        """All of `data`; `BrokenPipeError` when the command no longer reads."""
        self.writers += 1
        try:
            async with self._lock:
                await self._write(memoryview(data))
        finally:
            self.writers -= 1

    def pause(self) -> None:
        """Nothing is written until `go_on`."""
        self._may_write.clear()

    def go_on(self) -> None:
        """Ends `pause`."""
        self._may_write.set()

    async def _write(self, view: memoryview) -> None:
        while view:
            await self._may_write.wait()
            if self.closed:
                raise BrokenPipeError("the input was closed")
            try:
                view = view[os.write(self.fd, view[:CHUNK_BYTES]) :]
            except BlockingIOError:
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(self.fd, self._on_writable)
        try:
            await self._writable
        finally:
            if not self.closed:
                self._loop.remove_writer(self.fd)
            self._writable = None

    def _on_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def close(self) -> None:
        """Idempotent; a writer that waits gets `BrokenPipeError`."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(ValueError):
            self._loop.remove_writer(self.fd)
        os.close(self.fd)
        self._on_writable()
        self._may_write.set()
