"""A transport that sends together what is written together.

Each write wakes the peer, and an answer is several: its head, the frames of a command. On a busy
node a wake-up costs more than the answer, also because the peer then takes the processor from the
daemon.
"""

from __future__ import annotations

import asyncio
from typing import Any

# More is not held, so that whoever writes on and on learns that its peer does not read.
MAX_HELD_BYTES = 16 << 10


class JoinedWrites(asyncio.Transport):
    """What is written during one turn of the loop is sent at its end, or at a `flush`."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: list[bytes | bytearray | memoryview] = []
        self._held_bytes = 0
        self._is_due = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_BYTES:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._on_turn)

    def flush(self) -> None:
        """Send now what is held."""
        if not self._held:
            return
        held, self._held, self._held_bytes = self._held, [], 0
        if not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def _on_turn(self) -> None:
        self._is_due = False
        self.flush()

    def write_eof(self) -> None:
        self.flush()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._held, self._held_bytes = [], 0
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._held_bytes + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
