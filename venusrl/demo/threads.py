"""Blocking work beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], on_cancel: Callable[[], None] | None = None) -> T:
    """Run ``work`` in a thread.

    Cancelling waits for it to end, since a half-done update must not be saved; ``on_cancel``
    may tell it to hurry.
    """
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await asyncio.wait([task])
        # Its own failure, if any, comes of having been told to stop.
        task.exception()
        raise
