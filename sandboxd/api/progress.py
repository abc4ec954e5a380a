"""Answers that tell how something goes on: one JSON object a line, the last one its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from sandboxd.errors import InternalError, VenusError
from sandboxd.protocol import CONTENT_TYPE_NDJSON

_T = TypeVar("_T")
_MAX_QUEUED_LINES = 10_000
Present = Callable[[_T], BaseModel]


class Progress(Generic[_T]):
    """Made on the event loop; `on_line` may be called from any thread."""

    def __init__(self, operation: str, name: str) -> None:
        self._operation, self._object = operation, name
        self._lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def on_line(self, line: str) -> None:
        """A line of progress."""
        # A reader that stalls must not make the queue grow; it loses lines, not the result.
        if self._lines.qsize() < _MAX_QUEUED_LINES:
            self._put({"line": line})

    def answer(
        self,
        future: Future[_T],
        key: str,
        present: Present[_T],
        on_gone: Callable[[], None] = lambda: None,
    ) -> StreamingResponse:
        """Lines until the future is done, then `{key: …}` or an error; `on_gone` is called when
        the client does not wait for that."""

        def finished(done: Future[_T]) -> None:
            self._put(self._result(done, key, present))
            self._put(None)

        future.add_done_callback(finished)

        async def lines() -> AsyncIterator[bytes]:
            try:
                while (line := await self._lines.get()) is not None:
                    yield json.dumps(line).encode() + b"\n"
            finally:
                if not future.done():
                    on_gone()

        return StreamingResponse(lines(), media_type=CONTENT_TYPE_NDJSON)

    def _put(self, line: dict[str, Any] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: the daemon stops
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def _result(self, done: Future[_T], key: str, present: Present[_T]) -> dict[str, Any]:
        error = InternalError("the daemon stops") if done.cancelled() else done.exception()
        if error is None:
            return {key: present(done.result()).model_dump()}
        if not isinstance(error, VenusError):
            error = InternalError(
                "the daemon failed",
                operation=self._operation,
                object=self._object,
                cause=f"{type(error).__name__}: {error}"[:500],
            )
        return error.to_json()


def progress_answer(last: str) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document."""
    return {
        200: {
            "description": f"one JSON object per line: {{line}}, and last {{{last}}} or {{error}}",
            "content": {CONTENT_TYPE_NDJSON: {"schema": {"type": "string"}}},
        }
    }
