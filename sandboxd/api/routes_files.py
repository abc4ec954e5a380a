"""Routes of a sandbox's files."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandboxd import file_archive, file_ops, file_watch
from sandboxd.api import models_files as models
from sandboxd.api.context import ApiContext, Context, CurrentPeer, error_answers
from sandboxd.api.file_response import file_response, streamed
from sandboxd.api.peer import Peer
from sandboxd.errors import VenusError
from sandboxd.file_ops import FileTarget
from sandboxd.protocol import (
    CONTENT_TYPE_BYTES,
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_NDJSON,
    CONTENT_TYPE_TAR,
)

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/files", tags=["files"])

_ERRORS = error_answers(400, 404, 409, 410, 422, 429, 504)
_BINARY: dict[str, Any] = {CONTENT_TYPE_BYTES: {"schema": {"type": "string", "format": "binary"}}}
_TAR: dict[str, Any] = {CONTENT_TYPE_TAR: {"schema": {"type": "string", "format": "binary"}}}
_LINES: dict[str, Any] = {CONTENT_TYPE_NDJSON: {"schema": {"type": "string"}}}
Path = Annotated[str, Query(description="absolute, inside the sandbox")]
User = Annotated[str | None, Query(description="default: the sandbox's user")]
Mode = Annotated[
    str | None,
    Query(pattern="^[0-7]{1,4}$", description="octal; default: as it was, of a new file 644"),
]
Owner = Annotated[
    models.Owner | None, Query(description="default: as it was, of a new file the user")
]


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
    return await file_response(target)


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
    mode: Mode = None,
    owner: Owner = None,
) -> None:
    """Create or replace the file with the body, whole or not at all; makes parent directories."""
    target = _target(context, peer, sandbox_id, path, user, "write file")
    # request.stream() raises when the client is gone before the end of its body.
    await file_ops.write(
        target,
        None if mode is None else int(mode, 8),
        request.stream(),
        max_bytes=context.service.config.max_upload_bytes,
        owner=owner or "",
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
    sandbox_id: str,
    path: Path,
    context: Context,
    peer: CurrentPeer,
    user: User = None,
    follow: bool = False,
) -> models.FileEntry:
    """The entry itself; of a symbolic link, with `follow`, what it leads to."""
    target = _target(context, peer, sandbox_id, path, user, "stat file")
    return models.FileEntry.model_validate(await file_ops.stat(target, follow=follow))


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
    target = _target(context, peer, sandbox_id, path, user, "list directory")
    return Response(await file_ops.list_directory(target, depth), media_type=CONTENT_TYPE_JSON)


@router.post("/mkdir", status_code=204, operation_id="make_directory", responses=_ERRORS)
async def make_directory(
    sandbox_id: str, body: models.MakeDirectoryRequest, context: Context, peer: CurrentPeer
) -> None:
    """Make a directory, with `parents` as `mkdir -p`."""
    target = _target(context, peer, sandbox_id, body.path, body.user, "make directory")
    await file_ops.make_directory(target, body.mode, parents=body.parents)


@router.post("/rename", status_code=204, operation_id="rename_file", responses=_ERRORS)
async def rename_file(
    sandbox_id: str, body: models.RenameFileRequest, context: Context, peer: CurrentPeer
) -> None:
    """Give a file or directory another name, on the same filesystem."""
    target = _target(context, peer, sandbox_id, body.path, body.user, "rename file")
    await file_ops.rename(target, body.new_path, replace=body.replace)


@router.post("/attributes", status_code=204, operation_id="set_attributes", responses=_ERRORS)
async def set_attributes(
    sandbox_id: str, body: models.AttributesRequest, context: Context, peer: CurrentPeer
) -> None:
    """Change the owner, the mode, or both; a symbolic link is followed."""
    target = _target(context, peer, sandbox_id, body.path, body.user, "set attributes")
    # The owner first: changing it clears the set-id bits of the mode.
    if body.owner is not None:
        await file_ops.change_owner(target, body.owner)
    if body.mode is not None:
        await file_ops.change_mode(target, body.mode)


@router.get(
    "/tar",
    operation_id="read_directory",
    response_class=Response,
    responses={200: {"content": _TAR}, **_ERRORS},
)
async def read_directory(
    sandbox_id: str, path: Path, context: Context, peer: CurrentPeer, user: User = None
) -> Response:
    """A directory as a tar archive. An answer that is cut had an error on its way."""
    target = _target(context, peer, sandbox_id, path, user, "read directory")
    return await streamed(file_archive.read(target), CONTENT_TYPE_TAR)


@router.put(
    "/tar",
    status_code=204,
    operation_id="write_directory",
    responses={**_ERRORS, **error_answers(413, 507)},
    openapi_extra={"requestBody": {"required": True, "content": _TAR}},
)
async def write_directory(
    request: Request,
    sandbox_id: str,
    path: Path,
    context: Context,
    peer: CurrentPeer,
    user: User = None,
    owners: bool = False,
) -> None:
    """Unpack a tar archive below a directory. With `owners` they are as the archive says, else all
    belongs to the user. What was unpacked before an error stays."""
    target = _target(context, peer, sandbox_id, path, user, "write directory")
    await file_archive.write(
        target,
        request.stream(),
        max_bytes=context.service.config.max_upload_bytes,
        owners=owners,
    )


@router.get(
    "/watch",
    operation_id="watch_directory",
    response_class=Response,
    responses={
        200: {
            "description": "one event a line, `type`, `path`, `is_directory`, `target`; the last "
            "line is an error body where an error ended it",
            "content": _LINES,
        },
        **_ERRORS,
    },
)
async def watch_directory(
    sandbox_id: str,
    path: Path,
    context: Context,
    peer: CurrentPeer,
    user: User = None,
    recursive: bool = False,
) -> Response:
    """What happens in a directory, with `recursive` also in those below. Once this answers, all
    that happens from there on is told."""
    target = _target(context, peer, sandbox_id, path, user, "watch directory")
    return await streamed(
        _watch_lines(file_watch.watch(target, recursive=recursive)), CONTENT_TYPE_NDJSON
    )


async def _watch_lines(
    batches: AsyncGenerator[list[file_watch.WatchEvent], None],
) -> AsyncGenerator[bytes, None]:
    begun = False
    try:
        async for events in batches:
            begun = True
            yield b"".join(json.dumps(each.to_json()).encode() + b"\n" for each in events)
    except VenusError as error:
        if not begun:
            raise
        yield json.dumps(error.to_json()).encode() + b"\n"
    finally:
        await batches.aclose()
