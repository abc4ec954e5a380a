"""Watching a directory: the request, and the events on its stdout."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from sandboxd.init_protocol.numbers import ExecKind, FileFlag
from sandboxd.init_protocol.requests import ExecRequest
from sandboxd.init_protocol.wire import ProtocolError

_EVENT = struct.Struct("<IHHII")
_DIRECTORY = 1
_MAX_PATH_SIZE = 4096


class WatchKind(enum.IntEnum):
    """What happened; READY is first of all."""

    READY = 1
    CREATE = 2
    WRITE = 3
    REMOVE = 4
    RENAME = 5
    CHMOD = 6
    OVERFLOW = 7


@dataclass(frozen=True)
class WatchRecord:
    """Paths are below the watched directory, which is "" itself. Undecodable names come through as
    surrogate escapes."""

    kind: WatchKind
    is_directory: bool
    path: str
    target: str


def watch_request(
    exec_id: int, path: str | bytes, *, user: str = "", recursive: bool = False
) -> ExecRequest:
    """Events on stdout, until nobody reads."""
    flags = FileFlag.RECURSIVE if recursive else FileFlag(0)
    return ExecRequest(exec_id, (path,), ExecKind.WATCH, user, "/", None, 0, (), 0, flags)


class WatchDecoder:
    """Takes the stdout of WATCH in any pieces."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[WatchRecord]:
        """What the piece completes; `ProtocolError` for what init does not write."""
        self._pending += data
        records: list[WatchRecord] = []
        at = 0
        while len(self._pending) - at >= _EVENT.size:
            size, kind, flags, path_size, target_size = _EVENT.unpack_from(self._pending, at)
            if (
                not WatchKind.READY <= kind <= WatchKind.OVERFLOW
                or max(path_size, target_size) > _MAX_PATH_SIZE
                or size != _EVENT.size + path_size + target_size
            ):
                raise ProtocolError(f"malformed watch event: kind {kind}, {size} bytes")
            if len(self._pending) - at < size:
                break
            middle = at + _EVENT.size + path_size
            path = bytes(self._pending[at + _EVENT.size : middle])
            target = bytes(self._pending[middle : at + size])
            at += size
            records.append(
                WatchRecord(
                    WatchKind(kind),
                    bool(flags & _DIRECTORY),
                    path.decode("utf-8", "surrogateescape"),
                    target.decode("utf-8", "surrogateescape"),
                )
            )
        del self._pending[:at]
        return records
