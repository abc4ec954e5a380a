"""A cluster in miniature, for the properties of policies: turns are one round each, memory is
counted, nothing takes time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from venusrl.schedule.snapshot import (
    NOWHERE,
    Decision,
    Groups,
    Phase,
    Policy,
    Snapshot,
    Trajectories,
    Workers,
)
from venusrl.schedule.staleness import select_batch


def ints(values) -> np.ndarray:
    return np.asarray(values, np.int64)


def make_snapshot(
    *,
    group,
    context,
    phase=None,
    worker=None,
    admitted=None,
    turns=None,
    moved_turn=None,
    tool_s=None,
    kv=None,
    remaining=None,
    version=None,
    now=0,
    batch=1,
    max_staleness=4,
    capacity=(100_000,),
    host=0,
    prompt=1000,
    slots=64,
    block=1,
) -> Snapshot:
    n = len(group)
    groups = int(max(group)) + 1

    def column(values, fill):
        return ints(np.full(n, fill) if values is None else values)

    left = np.full(n, np.nan) if remaining is None else np.asarray(remaining, float)
    return Snapshot(
        version=now,
        batch_groups=batch,
        max_staleness=max_staleness,
        trajectories=Trajectories(
            group=ints(group),
            phase=column(phase, Phase.WAITING),
            worker=column(worker, NOWHERE),
            admitted=np.zeros(n, bool) if admitted is None else np.asarray(admitted, bool),
            turns=column(turns, 0),
            context_tokens=ints(context),
            kv_tokens=column(kv, 0),
            host_tokens=column(None, 0),
            arrival=np.arange(n),
            tool_s=np.zeros(n) if tool_s is None else np.asarray(tool_s, float),
            moved_turn=column(moved_turn, -1),
            remaining_tokens=left,
            remaining_turns=left / 1000,
        ),
        groups=Groups(
            order=np.arange(groups),
            version=ints(np.zeros(groups) if version is None else version),
            prompt_tokens=ints(np.full(groups, prompt)),
        ),
        workers=Workers(
            kv_capacity=ints(capacity),
            host_capacity=ints(np.full(len(capacity), host)),
            slots=ints(np.full(len(capacity), slots)),
            block_tokens=block,
        ),
    )


@dataclass
class Rounds:
    """Runs a policy to the end of a list of groups, in rounds; every admitted trajectory that its
    worker has memory for does one turn per round, by rank."""

    policy: Policy
    lengths: np.ndarray  # turns, [group, sibling]
    batch: int
    in_flight: int
    max_staleness: int
    capacity: np.ndarray
    prompt: int = 1000
    turn_tokens: int = 1000
    trained: list[tuple[int, int, int]] = field(default_factory=list)  # step, group, version
    moves: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def run(self, limit: int) -> int:
        """Rounds until all groups are trained; AssertionError after `limit`."""
        size = self.lengths.shape[1]
        live: list[int] = []
        version: dict[int, int] = {}
        turns = np.zeros(self.lengths.shape, int)
        worker = np.full(self.lengths.shape, NOWHERE)
        admitted = np.zeros(self.lengths.shape, bool)
        moved = np.full(self.lengths.shape, -1)
        step, waiting = 0, list(range(len(self.lengths)))
        for number in range(limit):
            while waiting and len(live) < self.in_flight:
                live.append(waiting.pop(0))
                version[live[-1]] = step
            at = np.asarray(live)
            done = (turns[at] >= self.lengths[at]).ravel()
            snapshot = make_snapshot(
                group=np.repeat(np.arange(len(live)), size),
                context=self.prompt + self.turn_tokens * turns[at].ravel(),
                phase=np.where(done, Phase.DONE, Phase.WAITING),
                worker=worker[at].ravel(),
                admitted=admitted[at].ravel(),
                turns=turns[at].ravel(),
                moved_turn=moved[at].ravel(),
                remaining=self.turn_tokens * np.maximum(0, self.lengths[at] - turns[at]).ravel(),
                version=[version[group] for group in live],
                now=step,
                batch=self.batch,
                max_staleness=self.max_staleness,
                capacity=self.capacity,
                prompt=self.prompt,
            )
            decision = self.policy(snapshot)
            check(snapshot, decision)
            for row in decision.migrations(snapshot).tolist():
                place = live[row // size], row % size
                self.moves.setdefault(place, []).append(int(turns[place]))
                moved[place] = turns[place]
            worker[at] = decision.worker.reshape(-1, size)
            admitted[at] = decision.admitted.reshape(-1, size)
            self.turn(snapshot, decision, turns, live)
            complete = np.all(turns[at] >= self.lengths[at], axis=1)
            batch = select_batch(
                ints([version[group] for group in live]),
                ints(live),
                complete,
                step=step,
                batch=min(self.batch, len(live)),
                max_staleness=self.max_staleness,
            )
            if batch is not None:
                gone = [live[row] for row in batch.trained]
                self.trained += [(step, group, version[group]) for group in gone]
                live = [group for group in live if group not in gone]
                step += 1
            if not live and not waiting:
                return number + 1
        raise AssertionError(f"{len(live)} groups are not trained after {limit} rounds")

    def turn(self, snapshot: Snapshot, decision: Decision, turns: np.ndarray, live: list[int]):
        rows, size = snapshot.trajectories, self.lengths.shape[1]
        for target, memory in enumerate(self.capacity):
            here = np.flatnonzero(
                decision.admitted & (decision.worker == target) & (rows.phase != Phase.DONE)
            )
            used = 0
            for row in here[np.argsort(decision.rank[here])]:
                used += rows.context_tokens[row] + self.turn_tokens
                # The first always runs, as in an engine that holds one maximal context.
                if used > memory and used > rows.context_tokens[row] + self.turn_tokens:
                    break
                turns[live[row // size], row % size] += 1


def check(snapshot: Snapshot, decision: Decision) -> None:
    """What every decision of every policy keeps."""
    rows = snapshot.trajectories
    n = len(rows)
    for column in (decision.critical, decision.rank, decision.admitted, decision.level,
                   decision.worker):  # fmt: skip
        assert len(column) == n
    assert sorted(decision.rank.tolist()) == list(range(n))
    done = rows.phase == Phase.DONE
    assert not np.any(decision.admitted & done)
    assert np.all(decision.worker[decision.admitted] >= 0)
    assert np.all(decision.worker < len(snapshot.workers))
    running = rows.phase == Phase.RUNNING
    assert np.all(decision.worker[running] == rows.worker[running])
