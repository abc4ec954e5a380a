"""Lets commands start in a sandbox, except while it is being captured.

Commands that run are none of its concern: the capture stops them. But init, which is not captured,
must not start anything meanwhile, and a file operation is a process that a fork could not have.

Touched on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from sandboxd.errors import Conflict

# A transfer of a file can take long, and those who want to start something wait behind the capture.
QUIET_TIMEOUT_S = 20.0


class StartGate:
    """Closed by one capture at a time; others wait for their turn."""

    def __init__(self) -> None:
        self._starting = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """A capture is under way."""
        return self._closed

    def notify(self) -> None:
        """Something changed that `closed` or `wait_open` may wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def enter(self) -> None:
        """Before a start; waits while the gate is closed. `leave` must follow."""
        while self._closed:
            await self._changed.wait()
        self._starting += 1

    def leave(self) -> None:
        """The start is over."""
        self._starting -= 1
        if self._closed:
            self.notify()

    async def wait_open(self) -> None:
        """Until no capture is under way."""
        while self._closed:
            await self._changed.wait()

    @contextlib.asynccontextmanager
    async def closed(self, is_busy: Callable[[], bool], sandbox_id: str) -> AsyncIterator[None]:
        """Nothing starts within the block. `is_busy`: what must end before it begins still runs;
        whoever ends it calls `notify`. Raises `Conflict` if that takes too long."""
        await self.wait_open()
        self._closed = True
        try:
            await self._wait_quiet(is_busy, sandbox_id)
            yield
        finally:
            self._closed = False
            self.notify()

    async def _wait_quiet(self, is_busy: Callable[[], bool], sandbox_id: str) -> None:
        try:
            async with asyncio.timeout(QUIET_TIMEOUT_S):
                while self._starting or is_busy():
                    await self._changed.wait()
        except TimeoutError:
            raise Conflict(
                "a file of the sandbox is being transferred",
                operation="snapshot sandbox",
                object=sandbox_id,
                cause=f"it did not end within {QUIET_TIMEOUT_S:g} s",
            ) from None
