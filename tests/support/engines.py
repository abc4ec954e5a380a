"""Engines that do what a test tells them, for tests of the router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from venusrl.engine.generation import EngineError, FinishReason, Generation
from venusrl.engine.shared_table import Claim
from venusrl.engine.step_cost import PREFILL_COST


@dataclass
class Scripted:
    """An engine that counts up: the token after n is n + 1. It dies where `kill` is called."""

    number: int
    version: int = 0
    dead: str | None = None
    requests: list[list[int]] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    claims: list[Claim | None] = field(default_factory=list)
    prefill_ns: int = 0  # per token, as it tells
    hold: asyncio.Event | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _end: asyncio.Event = field(default_factory=asyncio.Event)

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
    ) -> Generation:
        self.requests.append(list(token_ids))
        self.priorities.append(priority)
        self.claims.append(claim)
        self.asked.set()
        tokens = [token_ids[-1] + 1 + step for step in range(max_tokens)]
        if self.hold is not None:
            assert partial is not None
            partial.token_ids.extend(tokens[:2])
            partial.logprobs.extend([0.0] * 2)
            partial.versions.extend([self.version] * 2)
            await self.hold.wait()
        if self.dead is not None:
            raise EngineError(self.dead)
        return Generation(
            tokens, [0.0] * max_tokens, [self.version] * max_tokens, FinishReason.LENGTH
        )

    def kill(self) -> None:
        self.dead = "killed by the test"
        self._end.set()
        if self.hold is not None:
            self.hold.set()

    async def ended(self) -> None:
        await self._end.wait()

    async def push_weights(self, path: Path | str, version: int) -> None:
        self.version = version

    async def counts(self) -> dict[str, int]:
        return {"requests": len(self.requests), PREFILL_COST: self.prefill_ns}

    def close(self) -> None:
        self.dead = self.dead or "closed"


@dataclass
class Fleet:
    """Starts engines; `refuse` makes later starts fail."""

    started: list[Scripted] = field(default_factory=list)
    refuse: bool = False
    doomed: bool = False  # engines hold their requests until they are killed

    async def __call__(self, number: int) -> Scripted:
        if self.refuse:
            raise EngineError("no engine to be had")
        engine = Scripted(number, hold=asyncio.Event() if self.doomed else None)
        self.started.append(engine)
        return engine


async def until(happened: Callable[[], object]) -> None:
    """Lets the others run until it has."""
    for _ in range(10_000):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not happen")


async def take(handle: object, tokens: list[int], length: int = 4) -> Generation:
    return await handle.generate(tokens, max_tokens=length, stop_token_ids=[])  # type: ignore[attr-defined]
