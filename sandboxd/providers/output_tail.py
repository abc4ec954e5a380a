"""The end of what a command writes, in bounded memory."""

from __future__ import annotations

from collections import deque


class OutputTail:
    """The last `limit` bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())

    def text(self) -> str:
        content = b"".join(self._chunks)
        return content[max(0, len(content) - self._limit) :].decode("utf-8", "replace")
