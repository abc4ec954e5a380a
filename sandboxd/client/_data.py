"""What a caller may hand over as data, turned into chunks for the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Protocol, cast, runtime_checkable

from sandboxd.protocol import MAX_INLINE_STDIN_BYTES

CHUNK_BYTES = 256 << 10


@runtime_checkable
class Readable(Protocol):
    """A binary file, or anything that reads like one."""

    def read(self, size: int, /) -> bytes: ...


Data = str | bytes | bytearray | memoryview | Readable | Iterable[bytes]
AsyncData = Data | AsyncIterable[bytes]


def whole(data: object) -> bytes | None:
    """The bytes, when they are in memory already; None for a source to be read in pieces."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    return None


def small(data: object) -> bytes | None:
    """The bytes, when they are in memory and few enough to be sent in one piece."""
    content = whole(data)
    return content if content is not None and len(content) <= MAX_INLINE_STDIN_BYTES else None


def pieces(data: Data) -> Iterator[bytes]:
    """Chunks of a source; never an empty one, which would end a chunked body."""
    content = whole(data)
    if content is not None:
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
        return
    if isinstance(data, Readable):
        # read1 hands over what is there: a pipe's reader must not wait for a full chunk.
        read = getattr(data, "read1", data.read)
        while chunk := _as_bytes(read(CHUNK_BYTES)):
            yield chunk
        return
    for chunk in cast(Iterable[bytes], data):
        if chunk:
            yield _as_bytes(chunk)


async def async_pieces(data: AsyncData) -> AsyncIterator[bytes]:
    """The same for asyncio; a file is read in a thread, because a read may block."""
    if isinstance(data, AsyncIterable):
        async for chunk in data:
            if chunk:
                yield _as_bytes(chunk)
    elif isinstance(data, Readable):
        read = getattr(data, "read1", data.read)
        while chunk := _as_bytes(await asyncio.to_thread(read, CHUNK_BYTES)):
            yield chunk
    else:
        for chunk in pieces(data):
            yield chunk


def _as_bytes(chunk: object) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return bytes(chunk)
    raise TypeError(f"expected bytes from the source, got {type(chunk).__name__}; open it with 'b'")
