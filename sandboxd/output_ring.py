"""The end of a command's output, kept for whoever comes to read it, and the bounds of all that is
kept. Pure.

Positions count the bytes of a stream from its first: a reader that knows its own can go on from
there, and is told how many are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Every ring may hold this much, whatever the others hold, so that a reader that the command waits
# for loses nothing.
FLOOR_BYTES = 64 << 10


@dataclass
class KeptOutput:
    """How much of the output of commands may be kept, and by how many it may be read at once."""

    ring_bytes: int
    total_bytes: int
    readers_per_sandbox: int
    readers: int
    used_bytes: int = 0
    used_readers: int = 0

    def room(self, held_bytes: int) -> int:
        """How much a ring that holds `held_bytes` may hold."""
        free = max(0, self.total_bytes - self.used_bytes)
        return max(FLOOR_BYTES, min(self.ring_bytes, held_bytes + free))


class OutputRing:
    """The last `size_bytes` of a stream, or what the `bounds` of all rings leave to it."""

    def __init__(self, size_bytes: int, bounds: KeptOutput | None = None) -> None:
        self._size_bytes = size_bytes
        self._bounds = bounds
        self._content = bytearray()
        self.end = 0
        """Position after the last byte: how many there were in all."""
        self.on_added: Callable[[], None] = lambda: None

    @property
    def begin(self) -> int:
        """Position of the first byte that is still there."""
        return self.end - len(self._content)

    def add(self, data: bytes) -> None:
        """Append, and forget what no longer fits."""
        if not data:
            return
        before = len(self._content)
        room = self._size_bytes if self._bounds is None else self._bounds.room(before)
        self._content += data
        del self._content[: max(0, len(self._content) - room)]
        self._count(len(self._content) - before)
        self.end += len(data)
        self.on_added()

    def read(self, position: int, limit: int) -> tuple[int, bytes]:
        """How many bytes from `position` on are lost, and at most `limit` of those that follow."""
        lost = max(0, self.begin - position)
        start = position + lost - self.begin
        return lost, bytes(memoryview(self._content)[start : start + limit])

    def content(self) -> bytes:
        """All that is kept."""
        return bytes(self._content)

    def clear(self) -> None:
        """Nobody will read it any more."""
        self._count(-len(self._content))
        self._content.clear()

    def _count(self, more: int) -> None:
        if self._bounds is not None:
            self._bounds.used_bytes += more
