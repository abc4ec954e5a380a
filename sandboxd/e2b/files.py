"""Reading and writing files of a sandbox, as E2B's clients do: `/files` of its agent."""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from starlette.types import Send

from sandboxd import file_ops
from sandboxd.e2b.http import Request, answer_json
from sandboxd.e2b.multipart import MultipartDecoder, Part, PartEvent
from sandboxd.e2b.paths import Paths
from sandboxd.errors import InvalidRequest, Unsupported
from sandboxd.file_ops import FileTarget
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

_FILE_MODE = 0o644
UNPACKED_PIECE_BYTES = 64 << 10
_GZIP = 31  # of zlib's wbits
_METADATA_PREFIX = "x-metadata-"
_BYTES = "application/octet-stream"


@dataclass(frozen=True)
class FileRequest:
    """Whose files, and how they are named."""

    service: SandboxService
    sandbox: LiveSandbox
    user: str
    path: str
    paths: Paths

    async def target(self, path: str) -> FileTarget:
        """One file."""
        self.service.counters.file_operations += 1
        return await self.paths.target(self.sandbox, self.user, path)


async def upload(wanted: FileRequest, request: Request, send: Send) -> None:
    """Create or replace one file, or as many as the form has; each whole or not at all."""
    if any(name.startswith(_METADATA_PREFIX) for name in request.header_names()):
        raise Unsupported("files have no metadata here", operation="write file")
    encoding = request.header("content-encoding")
    body = request.chunks()
    if encoding == "gzip":
        body = unpacked(body)
    elif encoding not in ("", "identity"):
        raise Unsupported(f"the encoding {encoding[:40]!r} is not known", operation="write file")
    kind = request.header("content-type").partition(";")[0].strip().lower()
    if kind == _BYTES:
        if not wanted.path:
            raise InvalidRequest("no path is named", operation="write file")
        written = [await _write(wanted, wanted.path, body)]
    else:
        decoder = MultipartDecoder(request.header("content-type"))
        written = await _write_parts(wanted, _parts(decoder, body))
    await answer_json(send, 200, written)


async def _write(wanted: FileRequest, path: str, body: AsyncIterator[bytes]) -> dict[str, str]:
    target = await wanted.target(path)
    limit = wanted.service.config.max_upload_bytes
    await file_ops.write(target, _FILE_MODE, body, max_bytes=limit)
    name = posixpath.basename(target.path)
    return {"path": _shown(target.path), "name": _shown(name), "type": "file"}


async def _write_parts(
    wanted: FileRequest, parts: AsyncGenerator[Part, None]
) -> list[dict[str, str]]:
    written: list[dict[str, str]] = []
    async for part in parts:
        if part.event is not PartEvent.BEGIN:
            raise AssertionError("a part is read to its end before the next begins")
        content = _content(parts)
        if part.field != "file":
            async for _ in content:
                pass
            continue
        path = wanted.path or part.file_name
        if not path:
            raise InvalidRequest("no path is named", operation="write file")
        if wanted.path and written:
            raise InvalidRequest("one path, and more than one file", operation="write file")
        written.append(await _write(wanted, path, content))
    if not written:
        raise InvalidRequest("the form has no field `file`", operation="write file")
    return written


async def _content(parts: AsyncIterator[Part]) -> AsyncIterator[bytes]:
    async for part in parts:
        if part.event is PartEvent.END:
            return
        yield part.data


async def _parts(
    decoder: MultipartDecoder, body: AsyncIterator[bytes]
) -> AsyncGenerator[Part, None]:
    async for chunk in body:
        for part in decoder.feed(chunk):
            yield part
    if not decoder.complete:
        raise InvalidRequest("the form was cut", operation="write file")


async def unpacked(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The content of a gzip stream. However well it was packed, no more than a piece of it is in
    memory; how much comes in all is counted by who writes it."""
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        async for chunk in body:
            rest = chunk
            while True:
                if unpacker.eof:
                    if not rest:
                        break
                    unpacker = zlib.decompressobj(wbits=_GZIP)  # another member
                piece = unpacker.decompress(rest, UNPACKED_PIECE_BYTES)
                if piece:
                    yield piece
                rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
                if not rest and len(piece) < UNPACKED_PIECE_BYTES:
                    break
    except zlib.error as error:
        raise InvalidRequest(
            "the body is no gzip stream", operation="write file", cause=str(error)
        ) from None
    if not unpacker.eof:
        raise InvalidRequest("the gzip stream was cut", operation="write file")


def _shown(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
