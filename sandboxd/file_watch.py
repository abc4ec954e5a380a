"""What happens in a directory of a sandbox, as it happens.

A child of init watches with the sandbox's rights. It must not be there while the sandbox is
captured: so it is ended for a capture, and started again after it, and an `overflow` says that
something may have been missed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from sandboxd import init_protocol
from sandboxd.errors import InternalError
from sandboxd.file_operation import FileOperation, FileTarget
from sandboxd.file_ops import shown
from sandboxd.init_protocol import ProtocolError, WatchDecoder, WatchKind, WatchRecord


@dataclass(frozen=True)
class WatchEvent:
    """`kind` is `create`, `write`, `remove`, `rename`, `chmod` or `overflow`; paths are absolute.

    `target` is the new name of what was renamed.
    """

    kind: str
    path: str
    is_directory: bool = False
    target: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a line of the stream has it."""
        return {
            "type": self.kind,
            "path": self.path,
            "is_directory": self.is_directory,
            "target": self.target,
        }


async def watch(target: FileTarget, *, recursive: bool) -> AsyncGenerator[list[WatchEvent], None]:
    """First an empty list, once everything from there on is seen; then events in their order.

    Ends when the directory is removed. While nobody takes events they wait in the kernel, whose
    queue is bounded. Raises what ends the sandbox.
    """
    first = True
    while True:
        operation = await FileOperation.start(
            target,
            "watch directory",
            lambda exec_id: init_protocol.watch_request(
                exec_id, target.path, user=target.user, recursive=recursive
            ),
        )
        operation.running.ends_for_capture = True
        try:
            async for events in _events(operation, target.path):
                if events is None:
                    yield [] if first else [WatchEvent("overflow", target.path, True)]
                    first = False
                else:
                    yield events
            return
        except _EndedForCapture:
            pass
        finally:
            operation.end()


class _EndedForCapture(Exception):
    """Not an error: it is to be started again."""


async def _events(
    operation: FileOperation, root: str
) -> AsyncGenerator[list[WatchEvent] | None, None]:
    """None once it watches, then events."""
    decoder = WatchDecoder()
    chunks = operation.chunks()
    while True:
        try:
            chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except Exception:
            if operation.running.ended_for_capture:
                raise _EndedForCapture from None
            raise
        try:
            records = decoder.feed(chunk)
        except ProtocolError as error:
            raise InternalError(
                "init gave no events", operation="watch directory", object=root, cause=str(error)
            ) from error
        if records and records[0].kind is WatchKind.READY:
            del records[0]
            yield None
        if records:
            yield [_event(record, root) for record in records]


def _event(record: WatchRecord, root: str) -> WatchEvent:
    return WatchEvent(
        record.kind.name.lower(),
        _absolute(root, record.path),
        record.is_directory,
        _absolute(root, record.target) if record.kind is WatchKind.RENAME else None,
    )


def _absolute(root: str, path: str) -> str:
    return shown(f"{root.rstrip('/')}/{path}" if path else root)
