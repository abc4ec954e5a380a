"""Routes of the image store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from sandboxd.api import models_images
from sandboxd.api.context import ApiContext, Context, CurrentPeer, error_answers
from sandboxd.api.peer import require_root
from sandboxd.errors import Conflict, InternalError, VenusError
from sandboxd.images import Image
from sandboxd.pipes import InputPipe
from sandboxd.protocol import CONTENT_TYPE_NDJSON

router = APIRouter(prefix="/v1/images", tags=["images"])

_T = TypeVar("_T")
_MAX_QUEUED_LINES = 10_000
Name = Annotated[str, PathParameter(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


def _info(image: Image) -> models_images.ImageInfo:
    return models_images.ImageInfo(
        name=image.name,
        digest=image.digest or "",
        source=image.source,
        size_bytes=image.size_bytes,
        created_at=image.created_at,
        env=image.defaults.env,
        cwd=image.defaults.cwd,
        user=image.defaults.user,
        entrypoint=list(image.defaults.entrypoint),
        command=list(image.defaults.command),
    )


async def _in_thread(context: ApiContext, call: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(context.image_pool, call)


@router.get("", operation_id="list_images", responses=error_answers())
async def list_images(context: Context, _peer: CurrentPeer) -> models_images.ImageList:
    """All images of this node."""
    images = await _in_thread(context, context.images.list)
    return models_images.ImageList(images=[_info(each) for each in images])


class _UploadReader:
    """The tar of an upload as the file object that a worker thread reads.

    A plain end of file would make a cut upload look like a short archive; so the end is only
    believed when the whole body has come.
    """

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "rb", buffering=1 << 20)
        self.complete = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if (size < 0 or len(data) < size) and not self.complete:
            raise ConnectionError("the upload was cut")
        return data

    def close(self) -> None:
        self._file.close()


@router.put(
    "/{name}",
    operation_id="put_image",
    responses=error_answers(400, 409, 413, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_image(
    request: Request, name: Name, context: Context, peer: CurrentPeer
) -> models_images.ImageInfo:
    """Import a tar of a root file system, extracted as it comes; or of an OCI layout or of
    `docker save`, detected by what it holds. Root only."""
    require_root(peer, "import image", name)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    reader, pipe = _UploadReader(read_end), InputPipe(write_end)

    def extract() -> Image:
        try:
            return context.images.import_tar(name, reader)  # type: ignore[arg-type]
        finally:
            reader.close()

    extracting = asyncio.ensure_future(_in_thread(context, extract))
    cut: ClientDisconnect | None = None
    try:
        with contextlib.suppress(BrokenPipeError):  # it gave up: its own error says why
            async for chunk in request.stream():
                await pipe.write(chunk)
        reader.complete = True
    except ClientDisconnect as error:
        cut = error
    finally:
        pipe.close()
    try:
        image = await extracting
    except ConnectionError as error:
        raise cut or error from None
    return _info(image)


@router.post(
    "/{name}/import", operation_id="import_image", responses=error_answers(400, 404, 409, 507)
)
async def import_image(
    name: Name, body: models_images.ImportImageRequest, context: Context, peer: CurrentPeer
) -> models_images.ImageInfo:
    """Import a root file system, or an OCI layout, from a directory of the host. Root only."""
    require_root(peer, "import image", name)
    return _info(
        await _in_thread(context, lambda: context.images.import_directory(name, Path(body.path)))
    )


@router.post(
    "/{name}/build-base",
    operation_id="build_base",
    responses={
        200: {
            "description": "one JSON object per line: {line}, and last {image} or {error}",
            "content": {CONTENT_TYPE_NDJSON: {"schema": {"type": "string"}}},
        },
        **error_answers(400, 409),
    },
    response_class=StreamingResponse,
)
async def build_base(
    name: Name, body: models_images.BuildBaseRequest, context: Context, peer: CurrentPeer
) -> StreamingResponse:
    """Build a Debian base image with mmdebstrap, from the host's network. Root only."""
    require_root(peer, "build image", name)
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def on_line(line: str) -> None:
        # A reader that stalls must not make the queue grow; it loses lines, not the result.
        if lines.qsize() < _MAX_QUEUED_LINES:
            loop.call_soon_threadsafe(lines.put_nowait, {"line": line})

    future: Future[Image] = context.image_pool.submit(
        context.images.build_base, name, body.suite, body.packages, on_line
    )

    def finished(done: Future[Image]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: the daemon stops
            loop.call_soon_threadsafe(lines.put_nowait, _result_line(name, done))
            loop.call_soon_threadsafe(lines.put_nowait, None)

    future.add_done_callback(finished)

    async def progress() -> AsyncIterator[bytes]:
        while (line := await lines.get()) is not None:
            yield json.dumps(line).encode() + b"\n"

    return StreamingResponse(progress(), media_type=CONTENT_TYPE_NDJSON)


def _result_line(name: str, done: Future[Image]) -> dict[str, Any]:
    error = done.exception()
    if error is None:
        return {"image": _info(done.result()).model_dump()}
    if not isinstance(error, VenusError):
        error = InternalError(
            "the build failed", operation="build image", object=name, cause=str(error)
        )
    return error.to_json()


@router.delete(
    "/{name}", status_code=204, operation_id="remove_image", responses=error_answers(404, 409)
)
async def remove_image(name: Name, context: Context, peer: CurrentPeer) -> None:
    """Remove an image that no sandbox uses. Root only."""
    require_root(peer, "remove image", name)
    users = context.service.population.image_users(name)
    if users:
        raise Conflict(
            "the image is in use",
            operation="remove image",
            object=name,
            cause=f"{len(users)} sandboxes stand on it, for instance {users[0]}",
        )
    await context.creation.standing.drop(lambda shape: shape.image == name)
    await _in_thread(context, lambda: context.images.remove(name))
