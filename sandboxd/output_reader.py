"""Readers of a kept command's output: each gets what the rings hold, then what comes, then the end.

A reader has its own pace. One that is too slow loses the oldest bytes and is told how many; it
stops neither the command nor other readers. Only a reader that `holds` is waited for: the command's
own foreground client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast

from sandboxd.errors import Conflict, InvalidRequest, LimitExceeded
from sandboxd.output_ring import FLOOR_BYTES
from sandboxd.pipes import CHUNK_BYTES, OutputPipe
from sandboxd.running_exec import RunningExec

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one stream. `lost` bytes of it came before this piece and are gone."""

    stream: StreamName
    data: bytes
    lost: int = 0


class _Cursor:
    """Where a reader stands in one stream."""

    def __init__(self, stream: StreamName, pipe: OutputPipe, position: int) -> None:
        assert pipe.ring is not None
        self.stream = stream
        self.pipe = pipe
        self.ring = pipe.ring
        self.position = position
        self.end: int | None = None
        """Where it ends for this reader; known once the command's output is whole."""

    def take(self) -> Piece | None:
        last = self.ring.end if self.end is None else self.end
        if self.position >= last:
            return None
        lost, data = self.ring.read(self.position, CHUNK_BYTES)
        data = data[: max(0, last - self.position - lost)]
        self.position += lost + len(data)
        return Piece(self.stream, data, lost)


class OutputReader:
    """An asynchronous iterator of pieces, which ends when the command has ended and all of its
    output was given. To be closed, or used as a context."""

    def __init__(self, running: RunningExec, cursors: list[_Cursor], *, holds: bool) -> None:
        self.running = running
        self._cursors = cursors
        self._holds = holds
        self._next = 0
        self._wake = asyncio.Event()
        self._closed = False
        running.readers.add(self)
        self._hold()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while True:
            piece = self._take()
            if piece is not None:
                self._hold()
                return piece
            if self._is_at_end():
                raise StopAsyncIteration
            await self._wake.wait()
            self._wake.clear()

    def positions(self) -> dict[StreamName, int]:
        """Of the next byte of each stream."""
        return {each.stream: each.position for each in self._cursors}

    def wake(self) -> None:
        """Something happened that it may wait for."""
        self._wake.set()

    def close(self) -> None:
        """Idempotent. Nothing waits for it any more."""
        if self._closed:
            return
        self._closed = True
        self.running.readers.discard(self)
        self.running.sandbox.kept_output.used_readers -= 1
        self.running.drop_unread()
        if self._holds:
            for each in self._cursors:
                each.pipe.hold_at(None)

    def _take(self) -> Piece | None:
        # In turn, so that a stream that never rests does not keep the other one away.
        for _ in self._cursors:
            cursor = self._cursors[self._next % len(self._cursors)]
            self._next += 1
            piece = cursor.take()
            if piece is not None:
                return piece
        return None

    def _is_at_end(self) -> bool:
        if not self.running.is_finished:
            return False
        for each in self._cursors:
            if each.end is None:
                # What children write from here on is not waited for.
                each.end = each.ring.end
        return all(each.position >= (each.end or 0) for each in self._cursors)

    def _hold(self) -> None:
        if self._holds:
            for each in self._cursors:
                each.pipe.hold_at(each.position + FLOOR_BYTES)


def require_kept(running: RunningExec, operation: str) -> None:
    """`Conflict` for a command whose output and end go to the client that started it."""
    if not running.is_kept:
        raise Conflict(
            "its output is not kept",
            operation=operation,
            object=f"exec {running.exec_id}",
            cause="it goes to the client that started the command",
        )


def open_reader(
    running: RunningExec,
    operation: str,
    positions: Mapping[StreamName, int] | None = None,
    *,
    holds: bool = False,
) -> OutputReader:
    """A reader that begins at `positions` (default: at the first byte). `LimitExceeded` when there
    are too many readers."""
    sandbox, bounds = running.sandbox, running.sandbox.kept_output
    require_kept(running, operation)
    known = {*sandbox.execs.values(), *sandbox.ended}
    here = sum(len(each.readers) for each in known if each.readers)
    for count, limit, name in (
        (here, bounds.readers_per_sandbox, "max_readers_per_sandbox"),
        (bounds.used_readers, bounds.readers, "max_readers"),
    ):
        if count >= limit:
            raise LimitExceeded(
                f"{count} readers of commands are attached already",
                operation=operation,
                object=sandbox.sandbox_id,
                cause=f"{name} is {limit}",
            )
    cursors = []
    for stream, pipe in (("stdout", running.stdout), ("stderr", running.stderr)):
        if pipe is None or pipe.ring is None:
            continue
        name = cast(StreamName, stream)
        position = (positions or {}).get(name, 0)
        if not 0 <= position <= pipe.ring.end:
            raise InvalidRequest(
                f"position {position} is out of bounds",
                operation=operation,
                object=f"exec {running.exec_id}",
                cause=f"{pipe.ring.end} bytes of {stream} were written so far",
            )
        cursors.append(_Cursor(name, pipe, position))
    bounds.used_readers += 1
    return OutputReader(running, cursors, holds=holds)
