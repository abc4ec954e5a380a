"""Standing sandboxes: prepared before anybody asks for them.

Namespaces, mounts, groups, init and the processes of a template take most of a create's time, and
depend on nothing that only the request tells, but for the host name. So sandboxes of the shapes
that were asked for lately are prepared ahead, one after the other and when creates leave room; a
create that finds one completes it. What nobody asked for any more is removed after
`standing_window_s`.

They are not in the population and have no state file: after a kill of the daemon they are
remnants, and are removed.

Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from sandboxd.config import Config
from sandboxd.errors import VenusError
from sandboxd.preparation import Preparation, Prepared
from sandboxd.standing_plan import Demand, Shape, next_adjustment

_LOG = logging.getLogger("sandboxd")

# What follows a create, usually a command, comes before the launch of the next standing sandbox.
REFILL_DELAY_S = 0.02
TRIM_PAUSE_S = 0.5


class StandingSandboxes:
    """Those of this daemon. `slots` are those of the creates: preparing ahead takes one too."""

    def __init__(self, config: Config, preparation: Preparation, slots: asyncio.Semaphore) -> None:
        self._preparation = preparation
        self._slots = slots
        self._demand = Demand(config.standing_sandboxes, config.standing_window_s)
        self._standing: dict[Shape, deque[Prepared]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._closed = config.standing_sandboxes == 0

    def take(self, shape: Shape, count: int) -> list[Prepared]:
        """Up to `count` of the shape, which are the caller's from here on. Any may have died."""
        if self._closed:
            return []
        self._demand.note(shape, count, time.monotonic())
        self._wake(REFILL_DELAY_S)
        ready = self._standing.get(shape, deque())
        return [ready.popleft() for _ in range(min(count, len(ready)))]

    @property
    def count(self) -> int:
        """How many stand there now."""
        return sum(self.counts().values())

    def counts(self) -> dict[Shape, int]:
        """How many of each shape."""
        return {shape: len(ready) for shape, ready in self._standing.items() if ready}

    async def drop(self, matches: Callable[[Shape], bool]) -> None:
        """Remove those whose image or layers are about to go."""
        self._demand.forget(matches)
        if self._work is not None:
            await asyncio.wait((self._work,))  # it may be preparing one
        for shape in [each for each in self._standing if matches(each)]:
            for found in self._standing.pop(shape):
                await self._remove(found)

    async def close(self) -> None:
        """Remove all; none is launched any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.drop(lambda _: True)

    def _wake(self, delay_s: float) -> None:
        busy = self._work is not None and not self._work.done()
        if self._timer is None and not busy and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._work = asyncio.ensure_future(self._adjust())
        self._work.add_done_callback(_log_failure)

    async def _adjust(self) -> None:
        while not self._closed:
            wanted = self._demand.wanted(time.monotonic())
            step = next_adjustment(wanted, self.counts())
            if step is None:
                break
            if step.launch:
                await self._prepare(step.shape)
            else:
                await self._remove(self._standing[step.shape].popleft())
        self._standing = {shape: ready for shape, ready in self._standing.items() if ready}
        if self._standing:
            # Called later rather than now: this task is not done yet.
            asyncio.get_running_loop().call_soon(self._wake, TRIM_PAUSE_S)

    async def _prepare(self, shape: Shape) -> None:
        try:
            async with self._slots:
                made = await self._preparation.ahead(shape)
        except VenusError as error:
            # A create would meet the same, and somebody would be told.
            _LOG.info("no sandbox is prepared ahead: %s", error)
            self._demand.forget(lambda each: each == shape)
            return
        self._standing.setdefault(shape, deque()).append(made)

    async def _remove(self, found: Prepared) -> None:
        try:
            await self._preparation.discard(found)
        except VenusError as error:
            _LOG.error("remove %s: %s", found.sandbox.sandbox_id, error)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("prepare ahead: %s", error, exc_info=error)
