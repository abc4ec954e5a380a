"""A stream of answers that come in their own time: with signs of life in between, and an end when
the client is gone or its time is up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeVar

from sandboxd.api.frame_stream import Client
from sandboxd.e2b.connect import Code, ConnectError

T = TypeVar("T")


class _End:
    """After the last item."""


_END: Final = _End()


async def paced(
    items: AsyncIterator[T], client: Client, *, keepalive_s: float | None, timeout_s: float | None
) -> AsyncGenerator[T | None, None]:
    """The items; None when there was none for `keepalive_s`. Ends when the client is gone;
    `ConnectError` after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline_s = None if timeout_s is None else loop.time() + timeout_s
    gone = asyncio.Event()
    client.on_gone = gone.set
    if client.gone:
        return
    leaving = asyncio.ensure_future(gone.wait())
    coming: asyncio.Future[T | _End] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next(items))
            wait_s = keepalive_s
            if deadline_s is not None:
                left_s = max(0.0, deadline_s - loop.time())
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            await asyncio.wait(
                (coming, leaving), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.is_set():
                return
            if coming.done():
                item = coming.result()
                coming = None
                if isinstance(item, _End):
                    return
                yield item
            elif deadline_s is not None and loop.time() >= deadline_s:
                raise ConnectError(Code.DEADLINE_EXCEEDED, "the time of the stream is up")
            else:
                yield None
    finally:
        leaving.cancel()
        if coming is not None:
            coming.cancel()
            # Whatever it ends with, nobody asks any more.
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await coming


async def _next(items: AsyncIterator[T]) -> T | _End:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return _END
