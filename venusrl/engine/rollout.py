"""A trajectory, to whoever runs its episode: turns on whatever engine it is placed on.

A turn waits until the policy has admitted its trajectory. Tokens of a turn are kept as they come,
so that an engine may die under it: the turn goes on behind them on another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from venusrl.engine.generation import (
    EngineError,
    FinishReason,
    Generation,
    RolloutEnded,
    token_list,
)
from venusrl.engine.rollouts import Rollouts, Trajectory
from venusrl.engine.settings import require_counts
from venusrl.engine.shared_table import Claim
from venusrl.engine.workers import Engine, Workers
from venusrl.schedule.snapshot import Phase

# A turn that has seen so many engines die is not tried on another: it may be what kills them.
MAX_DEATHS = 3


class Dispatcher(Protocol):
    """What a rollout needs of the router."""

    rollouts: Rollouts
    workers: Workers

    def priority(self, member: Trajectory) -> int: ...

    def wake(self) -> None:
        """Something has happened: decide anew."""

    def finish(self, member: Trajectory, record: str | None) -> None: ...

    def fail_if_given_up(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What one turn is to be."""

    context: list[int]
    max_tokens: int
    stop_token_ids: list[int]
    temperature: float

    def is_complete(self, produced: Sequence[int]) -> bool:
        """Also where an engine died after the last token of the turn."""
        if len(produced) >= self.max_tokens:
            return True
        return bool(produced) and produced[-1] in self.stop_token_ids


class Rollout:
    """One turn at a time. Made by `Router.dispatch`."""

    def __init__(self, dispatcher: Dispatcher, member: Trajectory) -> None:
        self._dispatcher, self.member = dispatcher, member
        self.placed = asyncio.Event()
        self._turn: asyncio.Timeout | None = None

    @property
    def asks(self) -> bool:
        """Whether a turn is waited for."""
        return self._turn is not None

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
    ) -> Generation:
        """The next turn, after the whole context so far.

        Raises:
            EngineError: an engine refuses it, or all have been given up.
            RolloutEnded: the trajectory has been given up (`Trajectory.failure`).
            ValueError: the trajectory is finished, or has a turn under way; no token is asked for.
        """
        require_counts(f"generate for trajectory {self.member.number}", 1, max_tokens=max_tokens)
        if self.member.failure is not None:
            raise RolloutEnded(self.member.failure)
        if self.asks or self.member.phase is Phase.DONE:
            raise ValueError(
                f"generate for trajectory {self.member.number}: it has no turn to take"
            )
        context, stops = token_list(token_ids), token_list(stop_token_ids)
        wanted = _Wanted(context, max_tokens, stops, temperature)
        self._turn = asyncio.timeout(None)
        try:
            async with self._turn:
                return await self._take(wanted)
        except TimeoutError:
            if self.member.failure is None:
                raise
            raise RolloutEnded(self.member.failure) from None
        finally:
            self._turn = None

    def finish(self, record: str | None = None) -> None:
        """The episode is over. A second call does nothing, nor does one after it was given up.

        `record` is kept in the router's journal, if it has one, and comes back after a restart.
        """
        if self.member.phase is not Phase.DONE:
            self._dispatcher.finish(self.member, record)

    def interrupt(self) -> None:
        """It has been given up: the turn under way, if there is one, raises."""
        if self._turn is not None:
            self._turn.reschedule(asyncio.get_running_loop().time())

    async def _take(self, wanted: _Wanted) -> Generation:
        member, rollouts = self.member, self._dispatcher.rollouts
        so_far, deaths = Generation([], [], [], FinishReason.LENGTH), 0
        rollouts.ask(member, len(wanted.context))
        self._dispatcher.wake()
        try:
            while not wanted.is_complete(so_far.token_ids):
                worker, engine = await self._place()
                rollouts.begin(member)
                partial = Generation([], [], [], FinishReason.LENGTH)
                try:
                    rest = await self._ask(engine, wanted, so_far, partial)
                except EngineError as error:
                    if engine.dead is None:
                        raise
                    deaths += 1
                    if deaths >= MAX_DEATHS:
                        raise EngineError(f"{deaths} engines died under a turn: {error}") from error
                    so_far = _joined(so_far, partial)
                    if so_far.token_ids and so_far.token_ids[-1] in wanted.stop_token_ids:
                        so_far = replace(so_far, finish_reason=FinishReason.STOP)
                    rollouts.ask(member, len(wanted.context) + len(so_far.token_ids))
                    continue
                self._dispatcher.workers.served[worker] += 1
                so_far = _joined(so_far, rest)
                break
        except BaseException:
            if member.phase is not Phase.DONE:
                rollouts.leave(member, time.monotonic())
            raise
        if member.phase is not Phase.DONE:
            length = len(wanted.context) + len(so_far.token_ids)
            rollouts.end(member, length, time.monotonic())
        if not member.admitted:
            self._dispatcher.wake()
        return so_far

    async def _ask(
        self, engine: Engine, wanted: _Wanted, so_far: Generation, partial: Generation
    ) -> Generation:
        return await engine.generate(
            wanted.context + so_far.token_ids,
            max_tokens=wanted.max_tokens - len(so_far.token_ids),
            stop_token_ids=wanted.stop_token_ids,
            temperature=wanted.temperature,
            priority=self._dispatcher.priority(self.member),
            claim=Claim(self.member.slot, self.member.number),
            partial=partial,
        )

    async def _place(self) -> tuple[int, Engine]:
        """Waits until the trajectory is admitted on an engine that lives."""
        member = self.member
        while True:
            self._dispatcher.fail_if_given_up()
            if member.admitted and member.worker >= 0:
                engine = self._dispatcher.workers.engines[member.worker]
                if engine is not None and engine.dead is None:
                    return member.worker, engine
            self.placed.clear()
            self._dispatcher.wake()
            await self.placed.wait()


def _joined(first: Generation, second: Generation) -> Generation:
    return Generation(
        first.token_ids + second.token_ids,
        first.logprobs + second.logprobs,
        first.versions + second.versions,
        second.finish_reason,
    )
