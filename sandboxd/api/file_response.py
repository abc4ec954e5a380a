"""What a sandbox writes, as the body of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from starlette.responses import StreamingResponse

from sandboxd import file_ops
from sandboxd.file_ops import FileTarget
from sandboxd.protocol import CONTENT_TYPE_BYTES


async def file_response(target: FileTarget) -> StreamingResponse:
    """A file's bytes as they are read. An answer that is cut had an error on its way."""
    return await streamed(file_ops.read(target), CONTENT_TYPE_BYTES)


async def streamed(chunks: AsyncGenerator[bytes, None], media_type: str) -> StreamingResponse:
    """Chunks as they come. The first one, or the error in its place, decides the status."""
    first = await anext(chunks, b"")

    async def body() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    return StreamingResponse(body(), media_type=media_type)
