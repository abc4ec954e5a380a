"""Whose turn runs where: trajectories over several engines, by a policy of `venusrl.schedule`.

A trajectory asks for its next turn with its whole context. It is sent to its engine once the policy
has admitted it there; its tokens are kept here, so that an engine may die: what it had produced of
the turn goes on, behind the same context, on another. Decisions are written into the shared table
before anything is sent by them, for engines that run our scheduler; others are told a priority with
each turn, and obey by the router alone: who is not admitted waits here.

Does not handle: a trajectory whose tool never returns. Whoever runs it has a deadline and calls
`finish`; until then its group is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from venusrl.engine.generation import EngineError, FinishReason, Generation
from venusrl.engine.rollouts import Capacity, Group, Rollouts, Trajectory
from venusrl.engine.shared_table import DECISION, Claim, SharedTable
from venusrl.engine.workers import Engine, Workers
from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import Phase, Policy

# A turn that has seen so many engines die is not tried on another: it may be what kills them.
MAX_DEATHS = 3


@dataclass(frozen=True)
class RouterConfig:
    """`capacity` is that of each engine."""

    engines: int
    capacity: Capacity
    batch_groups: int  # per training step
    max_staleness: int = 4
    max_trajectories: int = 4096  # under way at once
    # Decisions are made when something has happened, at most once in `pause_s`, and at least once
    # in `interval_s`.
    pause_s: float = 0.02
    interval_s: float = 1.0
    table: Path | None = None  # made here, for engines with our scheduler
    by_rank: bool = (
        True  # without a table: the rank is the priority of a turn; else order of arrival
    )
    reports: Sequence[SharedTable] = ()  # what the engines tell of themselves, by engine


class Rollout:
    """A trajectory, to whoever runs its episode. One turn at a time."""

    def __init__(self, router: Router, member: Trajectory) -> None:
        self._router, self.member = router, member
        self.placed = asyncio.Event()
        self.asks = False

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
            ValueError: the trajectory is finished, or has a turn under way.
        """
        if self.asks or self.member.phase is Phase.DONE:
            raise ValueError(
                f"generate for trajectory {self.member.number}: it has no turn to take"
            )
        self.asks = True
        try:
            return await self._router.turn(
                self, list(token_ids), max_tokens, list(stop_token_ids), temperature
            )
        finally:
            self.asks = False

    def finish(self) -> None:
        """The episode is over. A second call does nothing."""
        self._router.finish(self)


class Router:
    """Made by `start`. `policy` is ours or a baseline."""

    def __init__(
        self,
        config: RouterConfig,
        start: Callable[[int], Awaitable[Engine]],
        policy: Policy | None = None,
    ) -> None:
        self.config = config
        self.policy = policy or Priority()
        self.rollouts = Rollouts(config.max_trajectories, config.batch_groups, config.max_staleness)
        self.workers = Workers(config.engines, start, self._worker_changed)
        self.migrated = 0
        self._table = (
            None
            if config.table is None
            else SharedTable.create(config.table, DECISION, config.max_trajectories)
        )
        self._handles: dict[int, Rollout] = {}  # by trajectory
        self._something = asyncio.Event()
        self._completed = asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        config: RouterConfig,
        start: Callable[[int], Awaitable[Engine]],
        policy: Policy | None = None,
    ) -> Router:
        """`start(number)` starts an engine, also later, in place of one that has died.

        Raises:
            EngineError: one does not start.
        """
        router = cls(config, start, policy)
        await router.workers.open()
        router._deciding = asyncio.create_task(router._decide_always())
        return router

    # --- for trainers -----------------------------------------------------------------------

    def dispatch(self, prompt_tokens: int, size: int) -> list[Rollout]:
        """A group of `size` rollouts of one prompt, which is so long.

        Raises:
            ValueError: more than `max_trajectories` would be under way.
        """
        group = self.rollouts.dispatch(prompt_tokens, size)
        handles = [Rollout(self, member) for member in group.members]
        self._handles.update((handle.member.number, handle) for handle in handles)
        self._something.set()
        return handles

    async def batch(self) -> list[Group]:
        """Waits for the groups of the next step: those that the bound forces, then the oldest.

        Raises:
            EngineError: all engines have been given up.
        """
        while (batch := self.rollouts.next_batch()) is None:
            self._fail_if_given_up()
            self._completed.clear()
            await self._completed.wait()
        return batch

    def retire(self, groups: Sequence[Group]) -> None:
        """They are trained, or dropped."""
        for group in groups:
            self.rollouts.retire(group)
            for member in group.members:
                self._handles.pop(member.number, None)
        self._something.set()

    async def push_weights(self, path: Path | str, version: int) -> None:
        """All engines go on with these weights; one that is being replaced starts with them."""
        await self.workers.push_weights(path, version)
        # What engines hold is of the old weights, and they have dropped it.
        for member in self.rollouts:
            member.kv_tokens = 0
        self.advance(version)

    def advance(self, version: int) -> None:
        """The weights that generate from now on are these; whoever calls has seen to it."""
        self.rollouts.version = version
        self._something.set()

    async def close(self) -> None:
        """Ends the engines. Turns under way raise EngineError."""
        if self._deciding is not None:
            self._deciding.cancel()
        await self.workers.close()
        for handle in self._handles.values():
            handle.placed.set()
        if self._table is not None:
            self._table.path.unlink(missing_ok=True)

    # --- turns --------------------------------------------------------------------------------

    async def turn(
        self,
        handle: Rollout,
        context: list[int],
        max_tokens: int,
        stop_token_ids: list[int],
        temperature: float,
    ) -> Generation:
        member, deaths = handle.member, 0
        so_far = Generation([], [], [], FinishReason.LENGTH)
        self.rollouts.ask(member, len(context))
        self._something.set()
        try:
            while not _finished(so_far, max_tokens, stop_token_ids):
                worker, engine = await self._place(handle)
                self.rollouts.begin(member)
                tokens = context + so_far.token_ids
                partial = Generation([], [], [], FinishReason.LENGTH)
                try:
                    rest = await engine.generate(
                        tokens,
                        max_tokens=max_tokens - len(so_far.token_ids),
                        stop_token_ids=stop_token_ids,
                        temperature=temperature,
                        priority=member.rank if self.config.by_rank else 0,
                        claim=Claim(member.slot, member.number),
                        partial=partial,
                    )
                except EngineError as error:
                    if engine.dead is None:
                        raise
                    deaths += 1
                    if deaths >= MAX_DEATHS:
                        raise EngineError(f"{deaths} engines died under a turn: {error}") from error
                    so_far = _joined(so_far, partial)
                    if so_far.token_ids and so_far.token_ids[-1] in stop_token_ids:
                        so_far = replace(so_far, finish_reason=FinishReason.STOP)
                    self.rollouts.ask(member, len(context) + len(so_far.token_ids))
                    continue
                self.workers.served[worker] += 1
                so_far = _joined(so_far, rest)
                break
        except BaseException:
            if member.phase is not Phase.DONE:
                self.rollouts.leave(member)
            raise
        if member.phase is not Phase.DONE:
            length = len(context) + len(so_far.token_ids)
            self.rollouts.end(member, length, time.monotonic())
        if not member.admitted:
            self._something.set()
        return so_far

    async def _place(self, handle: Rollout) -> tuple[int, Engine]:
        """Waits until the trajectory is admitted on an engine that lives."""
        member = handle.member
        while True:
            self._fail_if_given_up()
            if member.admitted and member.worker >= 0:
                engine = self.workers.engines[member.worker]
                if engine is not None and engine.dead is None:
                    return member.worker, engine
            handle.placed.clear()
            self._something.set()
            await handle.placed.wait()

    def _fail_if_given_up(self) -> None:
        if self.workers.failed:
            raise EngineError(f"all engines have been given up: {self.workers.reason}")

    def finish(self, handle: Rollout) -> None:
        if handle.member.phase is Phase.DONE:
            return
        self.rollouts.finish(handle.member)
        self._something.set()
        if handle.member.group.complete:
            self._completed.set()

    def _worker_changed(self, number: int) -> None:
        """It has died, has been started, or has been given up."""
        if number not in self.workers.live:
            self.rollouts.lose(number)
        self._something.set()
        if self.workers.failed:
            for handle in self._handles.values():
                handle.placed.set()
            self._completed.set()

    # --- decisions ----------------------------------------------------------------------------

    async def _decide_always(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.config.interval_s):
                    await self._something.wait()
            except TimeoutError:
                pass
            self._something.clear()
            self.decide()
            await asyncio.sleep(self.config.pause_s)

    def decide(self) -> None:
        """One decision, and what follows from it."""
        live = self.workers.live
        if not live:
            return
        if self.rollouts.groups:
            for number, report in enumerate(self.config.reports):
                if (found := report.read()) is not None:
                    self.rollouts.hear(number, found[1])
            capacities = dict.fromkeys(live, self.config.capacity)
            snapshot = self.rollouts.snapshot(live, capacities, time.monotonic())
            self.migrated += len(self.rollouts.apply(self.policy(snapshot), live))
        if self._table is not None:
            self._table.publish(self.rollouts.table(self._table.rows))
        for member in self.rollouts:
            if member.admitted:
                self._handles[member.number].placed.set()


def _joined(first: Generation, second: Generation) -> Generation:
    return Generation(
        first.token_ids + second.token_ids,
        first.logprobs + second.logprobs,
        first.versions + second.versions,
        second.finish_reason,
    )


def _finished(so_far: Generation, max_tokens: int, stop_token_ids: list[int]) -> bool:
    """Whether an engine died after the last token of the turn."""
    produced = so_far.token_ids
    return len(produced) >= max_tokens or (bool(produced) and produced[-1] in stop_token_ids)
