"""Routes of the image store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from sandboxd.api import models_images
from sandboxd.api.context import Context, CurrentPeer, error_answers
from sandboxd.api.peer import require_root
from sandboxd.api.progress import Progress, progress_answer
from sandboxd.errors import Conflict, VenusError
from sandboxd.images import Image
from sandboxd.images.pull import read_auth_file
from sandboxd.images.registry import NO_AUTHS, PullWish, checked_reference, login
from sandboxd.pipes import InputPipe

router = APIRouter(prefix="/v1/images", tags=["images"])

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


@router.get("", operation_id="list_images", responses=error_answers())
async def list_images(context: Context, _peer: CurrentPeer) -> models_images.ImageList:
    """All images of this node."""
    images = await context.service.in_thread(context.images.list)
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
    responses=error_answers(400, 404, 409, 413, 429, 501, 507),
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

    try:
        future = context.imports.submit(name, extract)
    except VenusError:
        reader.close()
        pipe.close()
        raise
    extracting = asyncio.wrap_future(future)
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
    "/{name}/import",
    operation_id="import_image",
    responses=error_answers(400, 404, 409, 413, 429, 501, 507),
)
async def import_image(
    name: Name, body: models_images.ImportImageRequest, context: Context, peer: CurrentPeer
) -> models_images.ImageInfo:
    """Import a root file system, or an OCI layout, from a directory of the host. Root only."""
    require_root(peer, "import image", name)
    path = Path(body.path)
    future = context.imports.submit(name, lambda: context.images.import_directory(name, path))
    return _info(await asyncio.shield(asyncio.wrap_future(future)))


@router.post(
    "/{name}/build-base",
    operation_id="build_base",
    responses={**progress_answer("image"), **error_answers(400, 409, 429)},
    response_class=StreamingResponse,
)
async def build_base(
    name: Name, body: models_images.BuildBaseRequest, context: Context, peer: CurrentPeer
) -> StreamingResponse:
    """Build a Debian base image with mmdebstrap, from the host's network. Root only."""
    require_root(peer, "build image", name)
    progress: Progress[Image] = Progress("build image", name)
    images, suite, packages = context.images, body.suite, body.packages
    future = context.imports.submit(
        name, lambda: images.build_base(name, suite, packages, progress.on_line)
    )
    return progress.answer(future, "image", _info)


@router.post(
    "/{name}/pull",
    operation_id="pull_image",
    responses={**progress_answer("image"), **error_answers(400, 404, 409, 429, 501, 502, 504)},
    response_class=StreamingResponse,
)
async def pull_image(
    name: Name, body: models_images.PullImageRequest, context: Context, peer: CurrentPeer
) -> StreamingResponse:
    """Pull an image from a registry, over the host's network; given up when the client goes. Root
    only."""
    require_root(peer, "pull image", name)
    reference = checked_reference(body.reference)
    auths = await context.service.in_thread(
        lambda: _auths(body, reference, context.service.config.registry_auth_file)
    )
    wish = PullWish(reference, body.insecure, auths)
    progress: Progress[Image] = Progress("pull image", name)
    cancelled = threading.Event()
    future = context.imports.submit(
        name, lambda: context.images.pull(name, wish, progress.on_line, cancelled)
    )

    def gone() -> None:
        cancelled.set()
        future.cancel()

    return progress.answer(future, "image", _info, gone)


def _auths(body: models_images.PullImageRequest, reference: str, usual: Path) -> bytes:
    if body.username is not None and body.password is not None:
        return login(reference, body.username, body.password.get_secret_value())
    if body.auth_file is not None:
        return read_auth_file(Path(body.auth_file))
    return read_auth_file(usual) if usual.exists() else NO_AUTHS


@router.post("/prune", operation_id="prune_images", responses=error_answers(400))
async def prune_images(
    body: models_images.PruneImagesRequest, context: Context, peer: CurrentPeer
) -> models_images.ImageList:
    """Remove images that no sandbox and no template uses; answers with those that went. Root
    only."""
    require_root(peer, "prune images", "all")
    if body.unused_for_s == 0:
        # Those that stand ready for somebody keep their image; they were asked for just now.
        used = context.service.population.image_users
        await context.creation.standing.drop(
            lambda shape: shape.template is None and not used(shape.image)
        )
    removed = await context.service.in_thread(
        lambda: context.images.prune(body.unused_for_s, pulled_only=not body.all)
    )
    return models_images.ImageList(images=[_info(each) for each in removed])


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
    await context.service.in_thread(lambda: context.images.remove(name))
