"""Streams that somebody else sends: hashed, counted and unpacked while they are read.

Whoever sends them chooses neither how much memory reading takes nor how much comes out.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from typing import BinaryIO, Protocol, cast

import zstandard

from sandboxd.errors import InvalidRequest, TooLarge

CHUNK_BYTES = 1 << 20
# What `zstd` itself takes unless it is told otherwise; a stream may name much more.
MAX_WINDOW_BYTES = 1 << 27
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    """What can be read from its beginning to its end."""

    def read(self, size: int, /) -> bytes: ...


class HashingReader(io.RawIOBase):
    """Passes a stream through, and knows the digest of what was read."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._pushed_back = b""

    def peek(self, size: int) -> bytes:
        """The first bytes, without consuming them."""
        while len(self._pushed_back) < size:
            more = self._stream.read(size - len(self._pushed_back))
            if not more:
                break
            self._pushed_back += more
        return self._pushed_back

    def read(self, size: int = -1) -> bytes:
        if self._pushed_back:
            end = len(self._pushed_back) if size < 0 else size
            data, self._pushed_back = self._pushed_back[:end], self._pushed_back[end:]
        else:
            data = self._stream.read(CHUNK_BYTES if size < 0 else size) or b""
        self._hash.update(data)
        return data

    def drain(self) -> None:
        """Read what follows the end of the archive, so that the sender is not cut off."""
        while self.read(CHUNK_BYTES):
            pass

    def digest(self) -> str:
        """`sha256:…` of all that was read."""
        return f"sha256:{self._hash.hexdigest()}"


class Allowance:
    """How many unpacked bytes an import may still read, over all its streams."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left_bytes = max_bytes

    def spend(self, count: int) -> None:
        """Raises `TooLarge`."""
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise TooLarge(
                "the image is too large",
                operation="import image",
                object="image",
                cause=f"unpacked it has more than {self._max_bytes} bytes",
            )


class UnpackedReader(io.RawIOBase):
    """What a plain, gzip or zstd stream holds, as its first bytes tell."""

    def __init__(self, packed: HashingReader, allowance: Allowance) -> None:
        self._allowance = allowance
        magic = packed.peek(4)
        self._source: Readable
        if magic.startswith(_GZIP_MAGIC):
            self._source = gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb")
        elif magic == _ZSTD_MAGIC:
            unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
            # A stream that is cut ends as if it were whole; the tar's end mark tells.
            self._source = unpacker.stream_reader(
                cast(BinaryIO, packed), read_size=CHUNK_BYTES, read_across_frames=True
            )
        else:
            self._source = packed

    def read(self, size: int = -1) -> bytes:
        try:
            data = self._source.read(CHUNK_BYTES if size < 0 else size)
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise InvalidRequest(
                "the stream cannot be unpacked",
                operation="import image",
                object="stream",
                cause=f"it is cut or damaged: {error}",
            ) from error
        self._allowance.spend(len(data))
        return data
