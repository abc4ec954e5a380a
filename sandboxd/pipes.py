"""The daemon's ends of a command's pipes, on the event loop.

`OutputPipe` is read by one consumer, or drained: to nowhere, when the daemon holds at most one
chunk of it, or into an `OutputRing`, which keeps the end. `InputPipe` is written with the command's
own pace as backpressure.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import functools
import os
import termios
from collections.abc import Callable

CHUNK_BYTES = 64 * 1024
# A background process that writes without end must not keep the loop busy: about 25 MB/s each.
_DRAIN_BYTES = 256 * 1024
_DRAIN_PAUSE_S = 0.01


@functools.cache
def _null_device() -> int:
    return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)


def command_pipe() -> tuple[int, int]:
    """Read and write end of a pipe between the daemon and a command of any user."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # The pipe belongs to the host's root, whom a sandbox does not know: without this, a script's
    # `echo … > /dev/stderr`, which opens the pipe anew, is refused. Only its holders can name it.
    os.fchmod(write_end, 0o666)
    return read_end, write_end


class OutputRing:
    """The last `size_bytes` of a stream."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._content = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and forget what no longer fits."""
        self._content += data
        del self._content[: max(0, len(self._content) - self._size_bytes)]

    def content(self) -> bytes:
        """What is kept."""
        return bytes(self._content)


class OutputPipe:
    """The read end of a command's stdout or stderr. Owns the descriptor."""

    def __init__(self, fd: int, wake: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._armed = False
        self._draining = False
        self.eof = False
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
            self._armed = True
            self._loop.add_reader(self._fd, self._on_readable)
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
            self._armed = True
            self._loop.add_reader(self._fd, self._on_readable)

    def close(self) -> None:
        """Idempotent. Writers that are left get SIGPIPE."""
        self._disarm()
        if not self.eof:
            self.eof = True
            os.close(self._fd)

    def _on_readable(self) -> None:
        self._disarm()
        if self._draining:
            self._drain_some()
        else:
            self._wake()

    def _drain_some(self) -> None:
        if self.eof:
            return
        try:
            if self.ring is None:
                flags = os.SPLICE_F_NONBLOCK
                count = os.splice(self._fd, _null_device(), _DRAIN_BYTES, flags=flags)
            else:
                data = os.read(self._fd, _DRAIN_BYTES)
                self.ring.add(data)
                count = len(data)
        except BlockingIOError:
            self.drain()
            return
        if count == 0:
            self.close()
            self._wake()
            return
        self.total_bytes += count
        self._loop.call_later(_DRAIN_PAUSE_S, self._drain_some)

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
        self.closed = False

    def write_now(self, data: bytes) -> int:
        """As much as the pipe takes at once."""
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0

    async def write(self, data: bytes | memoryview) -> None:
        """All of `data`; `BrokenPipeError` when the command no longer reads."""
        async with self._lock:
            view = memoryview(data)
            while view:
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
