"""Routes of a sandbox's files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from sandboxd import file_ops
from sandboxd.api import models
from sandboxd.api.context import ApiContext, Context, CurrentPeer, error_answers
from sandboxd.api.peer import Peer
from sandboxd.errors import InvalidRequest
from sandboxd.file_ops import FileTarget
from sandboxd.protocol import CONTENT_TYPE_BYTES, CONTENT_TYPE_JSON

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/files", tags=["files"])

_ERRORS = error_answers(400, 404, 409, 410, 422, 429, 504)
_BINARY: dict[str, Any] = {CONTENT_TYPE_BYTES: {"schema": {"type": "string", "format": "binary"}}}
Path = Annotated[str, Query(description="absolute, inside the sandbox")]
User = Annotated[str | None, Query(description="default: the sandbox's user")]
Mode = Annotated[str, Query(pattern="^[0-7]{1,4}$", description="octal, of a new file")]


def _target(
    context: ApiContext, peer: Peer, sandbox_id: str, path: str, user: str | None, operation: str
) -> FileTarget:
    sandbox = context.service.population.find(peer.uid, sandbox_id, operation)
    sandbox.require_running(operation)
    assert sandbox.record is not None
    context.service.counters.file_operations += 1
    return FileTarget(
        sandbox=sandbox,
        path=path,
        user=sandbox.record.user if user is None else user,
    )


@router.get(
    "",
    operation_id="read_file",
    response_class=Response,
    responses={200: {"content": _BINARY}, **_ERRORS},
)
async def read_file(
    sandbox_id: str, path: Path, context: Context, peer: CurrentPeer, user: User = None
) -> Response:
    """The file's bytes. An answer that is cut had an error on its way."""
    target = _target(context, peer, sandbox_id, path, user, "read file")
    chunks = file_ops.read(target)
    # The first chunk, or the error in its place, decides the status.
    first = await anext(chunks, b"")

    async def body() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    return StreamingResponse(body(), media_type=CONTENT_TYPE_BYTES)


@router.put(
    "",
    status_code=204,
    operation_id="write_file",
    responses={**_ERRORS, **error_answers(413, 507)},
    openapi_extra={"requestBody": {"required": True, "content": _BINARY}},
)
async def write_file(
    request: Request,
    sandbox_id: str,
    path: Path,
    context: Context,
    peer: CurrentPeer,
    user: User = None,
    mode: Mode = "644",
) -> None:
    """Create or replace the file with the body, whole or not at all; makes parent directories."""
    target = _target(context, peer, sandbox_id, path, user, "write file")
    # request.stream() raises when the client is gone before the end of its body.
    await file_ops.write(
        target,
        int(mode, 8),
        request.stream(),
        max_bytes=context.service.config.max_upload_bytes,
    )


@router.delete("", status_code=204, operation_id="remove_file", responses=_ERRORS)
async def remove_file(
    sandbox_id: str,
    path: Path,
    context: Context,
    peer: CurrentPeer,
    user: User = None,
    recursive: bool = False,
) -> None:
    """Remove a file, or a directory: an empty one, unless `recursive`."""
    target = _target(context, peer, sandbox_id, path, user, "remove file")
    await file_ops.remove(target, recursive=recursive)


@router.get("/stat", operation_id="stat_file", responses=_ERRORS)
async def stat_file(
    sandbox_id: str, path: Path, context: Context, peer: CurrentPeer, user: User = None
) -> models.FileEntry:
    """The entry itself; symbolic links are not followed."""
    target = _target(context, peer, sandbox_id, path, user, "stat file")
    return models.FileEntry.model_validate(await file_ops.stat(target))


@router.get("/list", operation_id="list_files", response_model=models.FileList, responses=_ERRORS)
async def list_files(
    sandbox_id: str,
    path: Path,
    context: Context,
    peer: CurrentPeer,
    user: User = None,
    depth: int = 1,
) -> Response:
    """Entries of a directory, `depth` levels down."""
    if not 1 <= depth <= file_ops.MAX_LIST_DEPTH:
        raise InvalidRequest(
            f"{depth} is out of bounds",
            operation="list directory",
            object="field depth",
            cause=f"it must be between 1 and {file_ops.MAX_LIST_DEPTH}",
        )
    target = _target(context, peer, sandbox_id, path, user, "list directory")
    return Response(await file_ops.list_directory(target, depth), media_type=CONTENT_TYPE_JSON)


@router.post("/mkdir", status_code=204, operation_id="make_directory", responses=_ERRORS)
async def make_directory(
    sandbox_id: str, body: models.MakeDirectoryRequest, context: Context, peer: CurrentPeer
) -> None:
    """Make a directory, with `parents` as `mkdir -p`."""
    target = _target(context, peer, sandbox_id, body.path, body.user, "make directory")
    await file_ops.make_directory(target, body.mode, parents=body.parents)
