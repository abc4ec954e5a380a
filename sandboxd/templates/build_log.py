"""What a build says while it runs: the end of it is kept, and may be followed by several.

Touched on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class BuildLog:
    """Whoever writes never waits for those who follow; a slow one misses the middle."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._total_bytes = 0
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, piece: bytes) -> None:
        """More of it."""
        self._kept += piece
        self._total_bytes += len(piece)
        # Twice as much may lie here, so that not every piece moves all of it.
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: -self._max_bytes]
        self._wake()

    def end(self) -> None:
        """Nothing comes any more."""
        self._ended = True
        self._wake()

    def content(self) -> bytes:
        """What is kept."""
        return bytes(self._kept[-self._max_bytes :])

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """What is kept, and then what comes, to the end."""
        seen = 0
        while True:
            changed = self._changed
            begin = self._total_bytes - len(self._kept)
            piece = bytes(self._kept[max(0, seen - begin) :])
            seen = self._total_bytes
            if piece:
                yield piece
            elif self._ended:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
