"""E2B's filesystem service: what is done with files beside reading and writing them."""

from __future__ import annotations

import asyncio
import posixpath
import stat as stat_bits
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandboxd import file_ops
from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.paths import Paths
from sandboxd.e2b.proto import filesystem_pb2 as wire
from sandboxd.e2b.rpc import Call, Procedure, Unary
from sandboxd.errors import Conflict, NotFound
from sandboxd.file_ops import FileTarget

if TYPE_CHECKING:
    from google.protobuf.message import Message

_TYPES: Mapping[str, wire.FileType] = {
    "file": wire.FILE_TYPE_FILE,
    "directory": wire.FILE_TYPE_DIRECTORY,
    "symlink": wire.FILE_TYPE_SYMLINK,
}
_DIRECTORY_MODE = 0o755


class FilesystemService:
    """Paths that are not absolute begin at the user's home."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def procedures(self) -> Mapping[str, Procedure]:
        """By the path of their URL."""
        service = "/filesystem.Filesystem"
        return {
            f"{service}/Stat": Unary(wire.StatRequest, self._stat),
            f"{service}/ListDir": Unary(wire.ListDirRequest, self._list),
            f"{service}/MakeDir": Unary(wire.MakeDirRequest, self._make_directory),
            f"{service}/Move": Unary(wire.MoveRequest, self._move),
            f"{service}/Remove": Unary(wire.RemoveRequest, self._remove),
        }

    async def _target(self, call: Call, path: str) -> FileTarget:
        call.service.counters.file_operations += 1
        return await self._paths.target(call.sandbox, call.user, path)

    async def _stat(self, call: Call, request: wire.StatRequest) -> Message:
        target = await self._target(call, request.path)
        return wire.StatResponse(entry=await _entry_of(target))

    async def _list(self, call: Call, request: wire.ListDirRequest) -> Message:
        target = await self._target(call, request.path)
        entries, truncated = await file_ops.list_entries(target, request.depth or 1)
        if truncated:
            raise ConnectError(
                Code.RESOURCE_EXHAUSTED,
                f"more than {file_ops.MAX_LIST_ENTRIES} entries; list less depth",
            )
        # As with reading them: a sandbox can make this a lot of work.
        infos = await asyncio.to_thread(lambda: [entry_info(each) for each in entries])
        return wire.ListDirResponse(entries=infos)

    async def _make_directory(self, call: Call, request: wire.MakeDirRequest) -> Message:
        target = await self._target(call, request.path)
        try:
            await _make(target)
        except Conflict:
            if (await _entry_of(target)).type == wire.FILE_TYPE_DIRECTORY:
                raise ConnectError(
                    Code.ALREADY_EXISTS, f"directory already exists: {target.path}"
                ) from None
            raise ConnectError(
                Code.INVALID_ARGUMENT, f"path already exists but is no directory: {target.path}"
            ) from None
        return wire.MakeDirResponse(entry=await _entry_of(target))

    async def _move(self, call: Call, request: wire.MoveRequest) -> Message:
        """What is at the destination is replaced; directories that lead there are made."""
        source = await self._target(call, request.source)
        destination = await self._paths.target(call.sandbox, call.user, request.destination)
        await _entry_of(source)
        above = FileTarget(call.sandbox, posixpath.dirname(destination.path), call.user)
        await file_ops.make_directory(above, _DIRECTORY_MODE, parents=True)
        await file_ops.rename(source, destination.path, replace=True)
        return wire.MoveResponse(entry=await _entry_of(destination))

    async def _remove(self, call: Call, request: wire.RemoveRequest) -> Message:
        target = await self._target(call, request.path)
        try:
            await file_ops.remove(target, recursive=True)
        except NotFound:
            # As E2B has it: what is not there is removed.
            call.sandbox.require_running("remove file")
        return wire.RemoveResponse()


async def _make(target: FileTarget) -> None:
    """As `mkdir`, and its parents as `mkdir -p`: one that is there already is a conflict."""
    try:
        await file_ops.make_directory(target, _DIRECTORY_MODE, parents=False)
    except NotFound:
        parent = FileTarget(target.sandbox, posixpath.dirname(target.path), target.user)
        await file_ops.make_directory(parent, _DIRECTORY_MODE, parents=True)
        await file_ops.make_directory(target, _DIRECTORY_MODE, parents=False)


async def _entry_of(target: FileTarget) -> wire.EntryInfo:
    return entry_info(await file_ops.stat(target))


def entry_info(entry: Mapping[str, Any]) -> wire.EntryInfo:
    """What the daemon knows of a file, in E2B's words. Who owns it is known by number only."""
    info = wire.EntryInfo(
        name=entry["name"],
        path=entry["path"],
        type=_TYPES.get(entry["type"], wire.FILE_TYPE_UNSPECIFIED),
        size=entry["size_bytes"],
        mode=entry["mode"],
        permissions=stat_bits.filemode(entry["mode"])[1:],
        owner=_owner(entry["uid"]),
        group=_owner(entry["gid"]),
        is_symlink=entry["type"] == "symlink",
    )
    info.modified_time.FromNanoseconds(int(entry["mtime"] * 1e9))
    if entry["target"] is not None:
        info.symlink_target = entry["target"]
    return info


def _owner(number: int) -> str:
    return "root" if number == 0 else str(number)
