"""What happens in directories of a sandbox: as a stream, or gathered until somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandboxd import file_watch
from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.paced import paced
from sandboxd.e2b.paths import Paths
from sandboxd.e2b.proto import filesystem_pb2 as wire
from sandboxd.e2b.rpc import AnswerStream, Call, Procedure, ServerStream, Unary
from sandboxd.errors import InvalidRequest, LimitExceeded, VenusError
from sandboxd.file_ops import FileTarget, stat
from sandboxd.file_watch import WatchEvent

if TYPE_CHECKING:
    from google.protobuf.message import Message

_LOG = logging.getLogger("sandboxd")

MAX_WATCHERS_PER_SANDBOX = 16
MAX_GATHERED_EVENTS = 10_000
"""Of one watcher; above that the oldest are forgotten."""

_KINDS: Mapping[str, wire.EventType] = {
    "create": wire.EVENT_TYPE_CREATE,
    "write": wire.EVENT_TYPE_WRITE,
    "remove": wire.EVENT_TYPE_REMOVE,
    "rename": wire.EVENT_TYPE_RENAME,
    "chmod": wire.EVENT_TYPE_CHMOD,
}


@dataclass
class _Watcher:
    """One that gathers."""

    sandbox_id: str
    events: deque[wire.FilesystemEvent] = field(
        default_factory=lambda: deque(maxlen=MAX_GATHERED_EVENTS)
    )
    task: asyncio.Task[None] | None = None


class WatchingService:
    """The part of the filesystem service that watches."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._watchers: dict[str, _Watcher] = {}

    def procedures(self) -> Mapping[str, Procedure]:
        """By the path of their URL."""
        service = "/filesystem.Filesystem"
        return {
            f"{service}/WatchDir": ServerStream(wire.WatchDirRequest, self._watch),
            f"{service}/CreateWatcher": Unary(wire.CreateWatcherRequest, self._create),
            f"{service}/GetWatcherEvents": Unary(wire.GetWatcherEventsRequest, self._get),
            f"{service}/RemoveWatcher": Unary(wire.RemoveWatcherRequest, self._remove),
        }

    async def _watch(self, call: Call, request: wire.WatchDirRequest, stream: AnswerStream) -> None:
        target = await self._target(call, request)
        response = wire.WatchDirResponse
        watched = file_watch.watch(target, recursive=request.recursive)
        first = True
        async with (
            aclosing(watched),
            aclosing(
                paced(
                    watched,
                    stream.client,
                    keepalive_s=call.keepalive_s,
                    timeout_s=call.timeout_s,
                )
            ) as batches,
        ):
            async for batch in batches:
                if first:
                    first = False
                    await stream.send(response(start=response.StartEvent()))
                elif batch is None:
                    await stream.send(response(keepalive=response.KeepAlive()))
                for event in _told(batch or [], target.path):
                    await stream.send(response(filesystem=event))

    async def _create(self, call: Call, request: wire.CreateWatcherRequest) -> Message:
        here = sum(each.sandbox_id == call.sandbox.sandbox_id for each in self._watchers.values())
        if here >= MAX_WATCHERS_PER_SANDBOX:
            raise LimitExceeded(
                f"{here} watchers are there already",
                operation="watch directory",
                object=call.sandbox.sandbox_id,
            )
        watcher_id = secrets.token_hex(8)
        watcher = self._watchers[watcher_id] = _Watcher(call.sandbox.sandbox_id)
        try:
            target = await self._target(call, request)
            watched = file_watch.watch(target, recursive=request.recursive)
            await anext(watched)  # from here on it sees everything
        except BaseException:
            del self._watchers[watcher_id]
            raise
        watcher.task = asyncio.ensure_future(self._gather(watcher_id, watched, target.path))
        return wire.CreateWatcherResponse(watcher_id=watcher_id)

    async def _gather(
        self, watcher_id: str, watched: AsyncGenerator[list[WatchEvent], None], root: str
    ) -> None:
        watcher = self._watchers[watcher_id]
        try:
            async with aclosing(watched):
                async for batch in watched:
                    watcher.events.extend(_told(batch, root))
        except VenusError as error:
            _LOG.debug("a watcher of %s ended: %s", watcher.sandbox_id, error)
            # Its sandbox is gone: nobody can ask for what it has gathered.
            self._watchers.pop(watcher_id, None)

    async def _get(self, call: Call, request: wire.GetWatcherEventsRequest) -> Message:
        watcher = self._find(call, request.watcher_id)
        response = wire.GetWatcherEventsResponse(events=watcher.events)
        watcher.events.clear()
        return response

    async def _remove(self, call: Call, request: wire.RemoveWatcherRequest) -> Message:
        watcher = self._find(call, request.watcher_id)
        del self._watchers[request.watcher_id]
        if watcher.task is not None:
            watcher.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher.task
        return wire.RemoveWatcherResponse()

    def _find(self, call: Call, watcher_id: str) -> _Watcher:
        watcher = self._watchers.get(watcher_id)
        if watcher is None or watcher.sandbox_id != call.sandbox.sandbox_id:
            raise ConnectError(Code.NOT_FOUND, f"watcher {watcher_id[:64]} not found")
        return watcher

    async def _target(
        self, call: Call, request: wire.WatchDirRequest | wire.CreateWatcherRequest
    ) -> FileTarget:
        call.service.counters.file_operations += 1
        target = await self._paths.target(call.sandbox, call.user, request.path)
        if request.include_entry:
            raise ConnectError(Code.UNIMPLEMENTED, "events have no entries")
        found = await stat(target, follow=True)
        if found["type"] != "directory":
            raise InvalidRequest("not a directory", operation="watch directory", object=target.path)
        return target


def _told(batch: list[WatchEvent], root: str) -> list[wire.FilesystemEvent]:
    """In E2B's words: what is renamed goes under its old name, and comes under the new one. That
    something may have been missed cannot be said in them."""
    told = []
    for event in batch:
        if event.kind in _KINDS:
            name = _relative(event.path, root)
            told.append(wire.FilesystemEvent(name=name, type=_KINDS[event.kind]))
        if event.target is not None:
            name = _relative(event.target, root)
            told.append(wire.FilesystemEvent(name=name, type=wire.EVENT_TYPE_CREATE))
    return told


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root.rstrip("/")).lstrip("/")
