"""What is under way on a fleet of engines: groups and trajectories, as policies want to see them.

Pure bookkeeping: `snapshot` says what is, a policy decides, `apply` writes the decision down.
`router.py` does what follows from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from venusrl.engine.settings import require_counts
from venusrl.engine.shared_table import DECISION, NOBODY, Rows
from venusrl.schedule.snapshot import (
    NOWHERE,
    Bools,
    Costs,
    Decision,
    Groups,
    Ints,
    Level,
    Phase,
    Snapshot,
    Trajectories,
    Workers,
)
from venusrl.schedule.staleness import latest_steps, select_batch


@dataclass(eq=False, slots=True)
class Trajectory:
    """One rollout. `slot`: its row in the shared table, used again once its group is retired."""

    number: int
    slot: int
    group: Group
    place: int  # in its group
    context_tokens: int
    phase: Phase = Phase.WAITING
    worker: int = NOWHERE
    admitted: bool = False
    turns: int = 0
    kv_tokens: int = 0  # on its worker, as far as is known
    arrival: int = 0
    moved_turn: int = -1
    tool_began_s: float = 0.0  # before its first turn: when it was dispatched
    critical: bool = False
    rank: int = 0
    level: Level = Level.LOW
    record: str | None = None  # what its episode left
    failure: str | None = None  # why it was given up; its data is not to be trained on


@dataclass(eq=False, slots=True)
class Group:
    """The rollouts of one prompt."""

    order: int  # of dispatch
    version: int  # of the weights then
    prompt_tokens: int
    key: str = ""  # what it is made from, to whoever dispatched it
    members: list[Trajectory] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return all(member.phase is Phase.DONE for member in self.members)


@dataclass(frozen=True, slots=True)
class Ended:
    """An episode that is over. `failure`: why it was given up."""

    record: str | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A group that is dispatched and not trained into the checkpoint."""

    order: int
    version: int
    prompt_tokens: int
    key: str
    episodes: list[Ended | None]  # by place in the group; None: it is to run again


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one engine."""

    kv_tokens: int
    slots: int  # requests that may generate at once
    block_tokens: int = 16  # of the engine's cache; vLLM's own default

    def __post_init__(self) -> None:
        counts = {"kv_tokens": self.kv_tokens, "slots": self.slots}
        require_counts("capacity", 1, **counts, block_tokens=self.block_tokens)


class Rollouts:
    """All groups that are dispatched and not yet retired; at most `slots` trajectories."""

    def __init__(self, slots: int, batch_groups: int, max_staleness: int) -> None:
        self.batch_groups, self.max_staleness = batch_groups, max_staleness
        self.version = 0  # of the weights that generate now
        self.groups: list[Group] = []  # oldest first
        self._free = list(range(slots))[::-1]
        self._orders = itertools.count()
        self._numbers = itertools.count(1)
        self._arrivals = itertools.count(1)

    def __iter__(self) -> Iterator[Trajectory]:
        return (member for group in self.groups for member in group.members)

    def dispatch(self, prompt_tokens: int, size: int, now_s: float, key: str = "") -> Group:
        """ValueError where there are not as many free slots, or a number is none."""
        require_counts("dispatch a group", 1, size=size, prompt_tokens=prompt_tokens)
        if size > len(self._free):
            raise ValueError(
                f"dispatch a group of {size}: {len(self._free)} slots for trajectories are free"
            )
        group = Group(next(self._orders), self.version, prompt_tokens, key)
        for place in range(size):
            number, slot = next(self._numbers), self._free.pop()
            member = Trajectory(number, slot, group, place, prompt_tokens, tool_began_s=now_s)
            member.arrival = next(self._arrivals)
            group.members.append(member)
        self.groups.append(group)
        return group

    def restore(self, kept: Sequence[Kept], dispatched: int, now_s: float) -> None:
        """The groups of a process that has ended; `dispatched`: how many there have been."""
        for one in kept:
            self._orders = itertools.count(one.order)
            group = self.dispatch(one.prompt_tokens, len(one.episodes), now_s, one.key)
            group.version = one.version
            for member, ended in zip(group.members, one.episodes, strict=True):
                if ended is not None:
                    member.record, member.failure = ended.record, ended.failure
                    self.finish(member)
        self._orders = itertools.count(dispatched)

    def retire(self, group: Group) -> None:
        """It is trained, or dropped."""
        self.groups.remove(group)
        self._free.extend(member.slot for member in group.members)

    def require_dispatched(self, group: Group) -> None:
        """ValueError where it is not, or is retired."""
        if group not in self.groups:
            raise ValueError(f"group {group.order}: it is not dispatched, or has been retired")

    # --- the life of a turn -----------------------------------------------------------------

    def ask(self, member: Trajectory, context_tokens: int) -> None:
        member.phase = Phase.WAITING
        member.context_tokens = context_tokens
        member.arrival = next(self._arrivals)

    def begin(self, member: Trajectory) -> None:
        member.phase = Phase.RUNNING

    def end(self, member: Trajectory, context_tokens: int, now_s: float) -> None:
        member.phase = Phase.TOOL
        member.turns += 1
        member.context_tokens = member.kv_tokens = context_tokens
        member.tool_began_s = now_s

    def leave(self, member: Trajectory, now_s: float) -> None:
        """Its turn was given up by whoever asked for it."""
        member.phase = Phase.TOOL
        member.tool_began_s = now_s

    def finish(self, member: Trajectory) -> None:
        member.phase = Phase.DONE
        member.level = Level.UNUSED

    def lose(self, worker: int) -> None:
        """An engine is dead, with everything that it held; its trajectories are placed anew."""
        for member in self:
            if member.worker == worker and member.phase is not Phase.DONE:
                member.worker, member.admitted, member.kv_tokens = NOWHERE, False, 0
                member.level = Level.LOW
                if member.phase is Phase.RUNNING:
                    member.phase = Phase.WAITING

    def hear(self, worker: int, held: Rows) -> None:
        """What an engine has told (`shared_table.REPORT`) of the contexts that it holds."""
        for member in self:
            if member.worker == worker and member.phase is not Phase.RUNNING:
                number, tokens = held[member.slot].item()
                known = tokens if number == member.number else 0
                member.kv_tokens = min(known, member.context_tokens)

    # --- decisions --------------------------------------------------------------------------

    def snapshot(
        self,
        live: Sequence[int],
        capacities: Mapping[int, Capacity],
        costs: Costs,
        now_s: float,
    ) -> Snapshot:
        """Workers are those of `live`, in that order."""
        column = {worker: at for at, worker in enumerate(live)}
        members = list(self)
        place = {group.order: at for at, group in enumerate(self.groups)}
        nothing = np.full(len(members), np.nan)

        def ints(values: Iterator[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.fromiter(values, np.int64)

        return Snapshot(
            version=self.version,
            batch_groups=self.batch_groups,
            max_staleness=self.max_staleness,
            trajectories=Trajectories(
                group=ints(place[m.group.order] for m in members),
                phase=ints(int(m.phase) for m in members),
                worker=ints(column.get(m.worker, NOWHERE) for m in members),
                admitted=np.fromiter((m.admitted for m in members), bool),
                turns=ints(m.turns for m in members),
                context_tokens=ints(m.context_tokens for m in members),
                kv_tokens=ints(m.kv_tokens for m in members),
                host_tokens=np.zeros(len(members), np.int64),
                arrival=ints(m.arrival for m in members),
                tool_s=np.fromiter(
                    (now_s - m.tool_began_s if m.phase is Phase.TOOL else 0.0 for m in members),
                    float,
                ),
                moved_turn=ints(m.moved_turn for m in members),
                remaining_tokens=nothing,
                remaining_turns=nothing,
            ),
            groups=Groups(
                order=ints(group.order for group in self.groups),
                version=ints(group.version for group in self.groups),
                prompt_tokens=ints(group.prompt_tokens for group in self.groups),
            ),
            workers=Workers(
                kv_capacity=ints(capacities[worker].kv_tokens for worker in live),
                host_capacity=np.zeros(len(live), np.int64),
                slots=ints(capacities[worker].slots for worker in live),
                block_tokens=max(capacities[worker].block_tokens for worker in live),
            ),
            costs=costs,
        )

    def apply(self, decision: Decision, live: Sequence[int]) -> list[Trajectory]:
        """Writes down a decision over `snapshot(live, ...)`; returns those that have moved.

        ValueError, and nothing is written, where it is not about these trajectories and workers.
        """
        self._check(decision, len(live))
        moved = []
        columns = (decision.critical, decision.rank, decision.admitted, decision.level)
        rows = zip(*(column.tolist() for column in (*columns, decision.worker)), strict=True)
        for member, (critical, rank, admitted, level, column) in zip(self, rows, strict=True):
            member.critical, member.rank, member.admitted = critical, rank, admitted
            if member.phase is Phase.DONE:
                continue
            member.level = Level(level)
            worker = live[column] if column != NOWHERE else member.worker
            if worker == member.worker or member.phase is Phase.RUNNING:
                continue
            if member.worker != NOWHERE:
                member.moved_turn, member.kv_tokens = member.turns, 0
                moved.append(member)
            member.worker = worker
        return moved

    def _check(self, decision: Decision, workers: int) -> None:
        count = sum(1 for _ in self)
        for column in fields(decision):
            found = np.shape(getattr(decision, column.name))
            if found != (count,):
                raise ValueError(
                    f"a decision over {count} trajectories: {column.name} has shape {found}"
                )
        worker, level = np.asarray(decision.worker), np.asarray(decision.level)
        least = np.where(decision.admitted, 0, NOWHERE)
        for name, wrong in (
            ("worker", (worker < least) | (worker >= workers)),
            ("level", (level < min(Level)) | (level > max(Level))),
        ):
            for row in np.flatnonzero(wrong)[:1].tolist():
                value, admitted = getattr(decision, name)[row], bool(decision.admitted[row])
                raise ValueError(
                    f"a decision over {workers} workers: row {row} ({admitted=}) has {name} {value}"
                )

    def table(self, rows: int) -> Rows:
        """The last decision, as schedulers read it (`shared_table.DECISION`)."""
        table = np.zeros(rows, DECISION)
        table["trajectory"] = NOBODY
        for member in self:
            table[member.slot] = (
                member.number,
                member.worker,
                member.rank,
                member.critical,
                member.level,
            )
        return table

    def next_batch(self) -> list[Group] | None:
        """The groups that the next step trains; None: it has to wait."""
        return self._batch_if(self._complete())

    def awaited(self) -> list[Trajectory]:
        """What the next step waits for: members of forced groups, then of the oldest."""
        complete = self._complete()
        latest = latest_steps(*self._ages(), self.batch_groups, self.max_staleness)
        forced = latest <= self.version
        for at in np.argsort(~forced, kind="stable").tolist():
            if self._batch_if(complete) is not None:
                break
            complete[at] = True
        if self._batch_if(complete) is None:
            return []  # fewer groups are dispatched than a step takes
        chosen = (group for group, late in zip(self.groups, complete, strict=True) if late)
        return [m for group in chosen for m in group.members if m.phase is not Phase.DONE]

    def _complete(self) -> Bools:
        return np.array([group.complete for group in self.groups], bool)

    def _ages(self) -> tuple[Ints, Ints]:
        """Versions and orders of the groups."""
        ages = np.array([(group.version, group.order) for group in self.groups], np.int64)
        version, order = ages.reshape(-1, 2).T
        return version, order

    def _batch_if(self, complete: Bools) -> list[Group] | None:
        """The next batch if these groups were complete."""
        batch = select_batch(
            *self._ages(),
            complete,
            step=self.version,
            batch=self.batch_groups,
            max_staleness=self.max_staleness,
        )
        return None if batch is None else [self.groups[at] for at in batch.trained.tolist()]
