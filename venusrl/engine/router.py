"""Whose turn runs where: trajectories over several engines, by a policy of `venusrl.schedule`.

A trajectory asks for its next turn with its whole context (rollout.py). It is sent to its engine
once the policy has admitted it there. Decisions are written into the shared table before anything
is sent by them, for engines that run our scheduler; others are told a priority with each turn, and
obey by the router alone: who is not admitted waits here.

Nothing is waited for without end: `tool_timeout_s` and `step_timeout_s` of the configuration, and
what engines have of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from venusrl.engine.generation import EngineError, WeightsError
from venusrl.engine.journal import Journal
from venusrl.engine.rollout import Rollout
from venusrl.engine.rollouts import Capacity, Ended, Group, Rollouts, Trajectory
from venusrl.engine.settings import require_counts, require_numbers
from venusrl.engine.shared_table import DECISION, SharedTable
from venusrl.engine.step_cost import PREFILL_COST
from venusrl.engine.workers import Engine, Workers
from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import Costs, Phase, Policy

__all__ = ["Rollout", "Router", "RouterConfig"]


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
    # A trajectory that asks for no turn for so long has a tool or a judge that hangs: given up.
    tool_timeout_s: float = 1800.0
    # How often the engines are asked what computing a token takes; until the first has told, the
    # policy weighs with the costs of an H100.
    costs_interval_s: float = 5.0
    # What a step still waits for after so long is given up; None: a step waits.
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        counts = ("engines", "batch_groups", "max_trajectories")
        require_counts("router", 1, **{name: getattr(self, name) for name in counts})
        require_counts("router", 0, max_staleness=self.max_staleness)
        require_numbers("router", pause_s=self.pause_s)
        bounds = ("interval_s", "tool_timeout_s", "costs_interval_s", "step_timeout_s")
        seconds = {name: getattr(self, name) for name in bounds}
        if self.step_timeout_s is None:
            del seconds["step_timeout_s"]
        require_numbers("router", above=0.0, **seconds)
        for report in self.reports:
            if report.rows != self.max_trajectories:
                raise ValueError(
                    f"router: report {report.path} has {report.rows} rows, not one for each of "
                    f"{self.max_trajectories} trajectories"
                )


class Router:
    """Made by `start`. `policy` is ours or a baseline."""

    def __init__(
        self,
        config: RouterConfig,
        start: Callable[[int], Awaitable[Engine]],
        policy: Policy | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.config = config
        self.policy = policy or Priority()
        self.rollouts = Rollouts(config.max_trajectories, config.batch_groups, config.max_staleness)
        self.workers = Workers(config.engines, start, self._worker_changed)
        self.migrated = 0
        self.given_up: Counter[str] = Counter()  # trajectories, by what ended them
        self._journal = journal
        self._table = (
            None
            if config.table is None
            else SharedTable.create(config.table, DECISION, config.max_trajectories)
        )
        self._handles: dict[int, Rollout] = {}  # by trajectory
        self._something = asyncio.Event()
        self._completed = asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None
        self._costs = Costs()

    @classmethod
    async def start(
        cls,
        config: RouterConfig,
        start: Callable[[int], Awaitable[Engine]],
        policy: Policy | None = None,
        *,
        version: int = 0,
        journal: Journal | None = None,
    ) -> Router:
        """`start(number)` starts an engine, also later, in place of one that has died.

        `version` is that of the weights that engines start with. With a `journal`, opened at that
        version, the groups of a process that has ended are there again (`restored`).

        Raises:
            EngineError: one does not start.
            OSError: the table cannot be made.
            ValueError: more is in the journal than `max_trajectories`.
        """
        router = cls(config, start, policy, journal)
        router.rollouts.version = version
        try:
            if journal is not None:
                router.rollouts.restore(journal.kept(), journal.dispatched, time.monotonic())
                for group in router.rollouts.groups:
                    router._hand_out(group)
            await router.workers.open()
        except BaseException:
            router._remove_table()
            raise
        router._deciding = asyncio.create_task(router._decide_always())
        router._deciding.add_done_callback(lambda _: router._tell_all())
        router._learning = asyncio.create_task(router._learn_costs())
        return router

    # --- for trainers -----------------------------------------------------------------------

    def dispatch(self, prompt_tokens: int, size: int, key: str = "") -> list[Rollout]:
        """A group of `size` rollouts of one prompt, which is so long.

        `key` says what it is made from, to whoever finds it again after a restart.

        Raises:
            EngineError: all engines have been given up, the policy has failed, or the router is
                closed.
            JournalError: it cannot be kept.
            ValueError: more than `max_trajectories` would be under way, or a number is none.
        """
        self.fail_if_given_up()
        group = self.rollouts.dispatch(prompt_tokens, size, time.monotonic(), key)
        if self._journal is not None:
            try:
                self._journal.dispatch(group.order, group.version, prompt_tokens, size, key)
            except BaseException:
                self.rollouts.retire(group)
                raise
        self._something.set()
        return self._hand_out(group)

    def restored(self) -> list[tuple[Group, list[Rollout]]]:
        """All groups that are dispatched and not retired: after a restart, those to go on with.

        Of those that are over, `Trajectory.record` says what they left; the others begin anew.
        """
        return [
            (group, [self._handles[member.number] for member in group.members])
            for group in self.rollouts.groups
        ]

    def _hand_out(self, group: Group) -> list[Rollout]:
        handles = [Rollout(self, member) for member in group.members]
        self._handles.update((handle.member.number, handle) for handle in handles)
        return handles

    async def batch(self) -> list[Group]:
        """Waits for the groups of the next step: those that the bound forces, then the oldest.

        Members with a `failure` are there for completeness, not to be trained on.

        Raises:
            EngineError: all engines have been given up, or the policy has failed.
        """
        patience_s, now = self.config.step_timeout_s, asyncio.get_running_loop().time
        due = None if patience_s is None else now() + patience_s
        while (batch := self.rollouts.next_batch()) is None:
            self.fail_if_given_up()
            self._completed.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._completed.wait()
            except TimeoutError:
                for member in self.rollouts.awaited():
                    self.give_up(member, "step", f"its step has waited for {patience_s:g} s")
                # Where fewer groups are dispatched than a step takes, it waits for more.
                due = now() + (patience_s or 0.0)
        return batch

    def retire(self, groups: Sequence[Group]) -> None:
        """They are trained, by the step that makes the next version, or dropped: what is incomplete
        is given up.

        With a journal: before the checkpoint of that version is saved.

        Raises:
            JournalError: it cannot be kept.
            ValueError: a group is not dispatched, or is retired already.
        """
        for group in groups:
            self.rollouts.require_dispatched(group)
            for member in group.members:
                if member.phase is not Phase.DONE:
                    self.give_up(member, "retired", "its group has been retired")
        if self._journal is not None:
            self._journal.retire((group.order for group in groups), self.rollouts.version)
        for group in groups:
            self.rollouts.retire(group)
            for member in group.members:
                self._handles.pop(member.number, None)
        self._something.set()

    def saved(self, version: int) -> None:
        """A checkpoint of `version` is safe: the journal forgets what it was trained on."""
        if self._journal is not None:
            self._journal.forget(version)

    async def push_weights(self, path: Path | str, version: int) -> None:
        """All engines go on with these weights; one that is being replaced starts with them.

        Raises:
            EngineError: as `dispatch`.
            WeightsError: they are refused. The version stays; engines that had begun to take them
                are replaced, by those with the weights before.
        """
        self.fail_if_given_up()
        if version < self.rollouts.version:
            raise WeightsError(
                f"push {path} as version {version}: {self.rollouts.version} generates now"
            )
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
        for task in (self._deciding, self._learning):
            if task is not None:
                task.cancel()
        await self.workers.close()
        self._remove_table()

    def _remove_table(self) -> None:
        if self._table is not None:
            self._table.remove()
            self._table = None

    # --- for rollouts ---------------------------------------------------------------------------

    def priority(self, member: Trajectory) -> int:
        return member.rank if self.config.by_rank else 0

    def wake(self) -> None:
        self._something.set()

    def finish(self, member: Trajectory, record: str | None) -> None:
        self._end(member, Ended(record, None))

    def give_up(self, member: Trajectory, cause: str, reason: str) -> None:
        """It is complete, as failed data; a turn under way raises RolloutEnded."""
        self.given_up[cause] += 1
        self._end(member, Ended(None, reason))
        self._handles[member.number].interrupt()

    def _end(self, member: Trajectory, ended: Ended) -> None:
        if self._journal is not None:
            group = member.group
            self._journal.end(group.order, member.place, self.rollouts.version, ended)
        member.record, member.failure = ended.record, ended.failure
        self.rollouts.finish(member)
        self._something.set()
        if member.group.complete:
            self._completed.set()

    def fail_if_given_up(self) -> None:
        if self._deciding is not None and self._deciding.done():
            if self._deciding.cancelled():
                raise EngineError("the router was closed")
            error = self._deciding.exception()
            raise EngineError(f"nothing is decided any more: {error!r}") from error
        if self.workers.failed:
            raise EngineError(f"all engines have been given up: {self.workers.reason}")

    def _worker_changed(self, number: int) -> None:
        """It has died, has been started, or has been given up."""
        if number not in self.workers.live:
            self.rollouts.lose(number)
        self._something.set()
        if self.workers.failed:
            self._tell_all()

    def _tell_all(self) -> None:
        """Whoever waits looks again, and finds that it is in vain."""
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
        self._give_up_idle(time.monotonic())
        live = self.workers.live
        if not live:
            return
        if self.rollouts.groups:
            for number, report in enumerate(self.config.reports):
                if (found := report.read()) is not None:
                    self.rollouts.hear(number, found[1])
            capacities = dict.fromkeys(live, self.config.capacity)
            snapshot = self.rollouts.snapshot(live, capacities, self._costs, time.monotonic())
            self.migrated += len(self.rollouts.apply(self.policy(snapshot), live))
        if self._table is not None:
            self._table.publish(self.rollouts.table(self._table.rows))
        for member in self.rollouts:
            if member.admitted:
                self._handles[member.number].placed.set()

    async def _learn_costs(self) -> None:
        """Asks the engines what computing takes, again and again: it changes with their load."""
        while True:
            with suppress(EngineError):
                told = [counts.get(PREFILL_COST, 0) for counts in await self.workers.counts()]
                known = [1e-9 * cost for cost in told if cost]
                if known:
                    self._costs = replace(self._costs, recompute_s=sum(known) / len(known))
            await asyncio.sleep(self.config.costs_interval_s)

    def _give_up_idle(self, now_s: float) -> None:
        limit_s = self.config.tool_timeout_s
        for handle in list(self._handles.values()):
            member = handle.member
            if member.phase is Phase.DONE or handle.asks or now_s - member.tool_began_s < limit_s:
                continue
            self.give_up(member, "tool", f"it has asked for no turn for {limit_s:g} s")
