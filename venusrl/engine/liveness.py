"""Does it still answer? A process that is stopped, or stuck in a step, never ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_SLICES = 4


async def wait_for_silence(ask: Callable[[], Awaitable[object]], timeout_s: float) -> None:
    """Asks again and again; returns once an answer takes longer than `timeout_s`.

    What `ask` raises goes through.
    """
    slice_s = timeout_s / _SLICES
    while True:
        asking = asyncio.ensure_future(ask())
        try:
            # In slices: a loop that was busy elsewhere for long finds the answer in the next one.
            for _ in range(_SLICES):
                answered, _ = await asyncio.wait({asking}, timeout=slice_s)
                if answered:
                    break
            else:
                return
        finally:
            asking.cancel()
        await asking
        await asyncio.sleep(slice_s)
