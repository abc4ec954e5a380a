"""Engines that are kept alive: one that dies is started again, with the weights of now.

Given up is an engine that does not serve a single request between deaths, `MAX_FAILURES` times in a
row: whatever kills it would kill it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from venusrl.engine.generation import EngineError, Generation
from venusrl.engine.shared_table import Claim

MAX_FAILURES = 3


class Engine(Protocol):
    """What a fleet is made of."""

    version: int

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
        priority: int = 0,
        claim: Claim | None = None,
        partial: Generation | None = None,
    ) -> Generation: ...

    @property
    def dead(self) -> str | None: ...

    async def ended(self) -> None:
        """Returns when it is dead."""

    async def push_weights(self, path: Path | str, version: int) -> None: ...

    async def counts(self) -> dict[str, int]: ...

    def close(self) -> None: ...


class Workers:
    """`start(number)` starts an engine; `changed(number)` is called when one has died or has been
    started again."""

    def __init__(
        self,
        count: int,
        start: Callable[[int], Awaitable[Engine]],
        changed: Callable[[int], None],
    ) -> None:
        self._start, self._changed = start, changed
        self.engines: list[Engine | None] = [None] * count
        self.served = [0] * count  # requests since the engine was started
        self.replaced = 0
        self.reason = ""  # why the last one was given up
        self._weights: tuple[Path | str, int] | None = None
        self._pushing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Starts all; EngineError if one does not start."""
        starting = [self._begin(number) for number in range(len(self.engines))]
        try:
            found = await asyncio.gather(*starting, return_exceptions=True)
            for error in found:
                if error is not None:
                    raise error
        except BaseException:
            await self.close()
            raise
        self._tasks = [asyncio.create_task(self._watch(n)) for n in range(len(self.engines))]

    @property
    def live(self) -> list[int]:
        """Numbers of those that serve."""
        return [n for n, engine in enumerate(self.engines) if engine and engine.dead is None]

    @property
    def failed(self) -> bool:
        """Nobody serves, and nobody will."""
        return not self.live and all(task.done() for task in self._tasks)

    async def push_weights(self, path: Path | str, version: int) -> None:
        """To all that live; those that are being started get them before they serve.

        Raises:
            WeightsError: one refuses them. Who is started later gets those before.
        """
        async with self._pushing:
            before, self._weights = self._weights, (path, version)
            pushes = [self.engines[number] for number in self.live]
            for found in await asyncio.gather(
                *(engine.push_weights(path, version) for engine in pushes if engine),
                return_exceptions=True,
            ):
                # An engine that dies of something else is replaced, and then gets them.
                if found is None or type(found) is EngineError:
                    continue
                self._weights = before
                raise found

    async def counts(self) -> list[dict[str, int]]:
        """Of the engines that live."""
        return [await engine.counts() for n in self.live if (engine := self.engines[n])]

    async def close(self) -> None:
        """Ends all; requests under way raise EngineError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines:
            if engine is not None:
                engine.close()

    async def _begin(self, number: int) -> None:
        engine = await self._start(number)
        try:
            async with self._pushing:
                if self._weights is not None:
                    await engine.push_weights(*self._weights)
                self.served[number] = 0
                self.engines[number] = engine
        except BaseException:
            engine.close()
            raise

    async def _watch(self, number: int) -> None:
        failures = 0
        while failures < MAX_FAILURES:
            engine = self.engines[number]
            if engine is not None:
                await engine.ended()
                failures = 0 if self.served[number] else failures + 1
                self.reason = engine.dead or ""
                self.engines[number] = None
                self._changed(number)
                engine.close()
            try:
                await self._begin(number)
            except Exception as error:  # whatever `start` raises: others wait for this engine
                told = isinstance(error, EngineError)
                failures, self.reason = failures + 1, str(error) if told else repr(error)
                continue
            self.replaced += 1
            self._changed(number)
        # Once this task is done: `failed` looks at that.
        asyncio.get_running_loop().call_soon(self._changed, number)
