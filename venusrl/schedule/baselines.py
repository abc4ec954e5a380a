"""The policies that ours is compared with, each as its source describes it.

All keep a trajectory on the worker that it began on (least loaded then), and leave the engine's
cache to its own least-recently-used order. `cap` is how many trajectories may be under way at
once over all workers; None: all that are dispatched.

- synchronous and asynchronous FCFS: stock vLLM, requests in order of arrival.
- `OldestFirst`: ROLL's queue: prompts in order of dispatch, by vLLM's priority scheduling.
- `LongestFirst`: Heddle's progressive priority: the longest predicted trajectory first.
- `ShortestFirst`: its opposite, shortest remaining first.
- `ProgramPause`: ThunderAgent: every few seconds, where the contexts of a worker's programs
  exceed its memory, programs are paused, acting ones first, then small ones; where there is room
  again, paused ones resume, those under way first and large ones first, on whichever worker has
  most room.

RollPacker's tail batching is about what is dispatched and trained, not about what runs:
`venusrl.simulate.tail_batching`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import (
    NOWHERE,
    Bools,
    Decision,
    Floats,
    Ints,
    Level,
    Phase,
    Snapshot,
    permutation,
)


def least_loaded(snapshot: Snapshot, rows: Ints) -> Ints:
    """Workers of all rows: `rows` that are nowhere go, in order, where fewest trajectories are."""
    trajectories = snapshot.trajectories
    worker = trajectories.worker.copy()
    here = worker[(trajectories.phase != Phase.DONE) & (worker != NOWHERE)]
    load = np.bincount(here, minlength=len(snapshot.workers))
    for row in rows[worker[rows] == NOWHERE].tolist():
        target = int(np.argmin(load))
        worker[row] = target
        load[target] += 1
    return worker


def capped(snapshot: Snapshot, rank: Ints, cap: int | None) -> Decision:
    """Who is under way stays so until complete; free places go by rank."""
    rows = snapshot.trajectories
    live = rows.phase != Phase.DONE
    admitted: Bools = live & rows.admitted
    outside = np.flatnonzero(live & ~rows.admitted)
    if cap is not None:
        free = max(0, cap - int(admitted.sum()))
        outside = outside[np.argsort(rank[outside])][:free]
    admitted[outside] = True
    return Decision(
        critical=np.zeros(len(rows), bool),
        rank=rank,
        admitted=admitted,
        level=np.full(len(rows), int(Level.LOW)),
        worker=least_loaded(snapshot, outside),
    )


@dataclass(frozen=True, slots=True)
class Fcfs:
    cap: int | None = None

    def __call__(self, snapshot: Snapshot) -> Decision:
        return capped(snapshot, np.arange(len(snapshot.trajectories)), self.cap)


@dataclass(frozen=True, slots=True)
class OldestFirst:
    cap: int | None = None

    def __call__(self, snapshot: Snapshot) -> Decision:
        rows = snapshot.trajectories
        rank = permutation(snapshot.groups.order[rows.group], rows.arrival)
        return capped(snapshot, rank, self.cap)


@dataclass(frozen=True, slots=True)
class LongestFirst:
    cap: int | None = None

    def __call__(self, snapshot: Snapshot) -> Decision:
        rows = snapshot.trajectories
        rank = permutation(-(rows.context_tokens + rows.remaining_tokens), rows.arrival)
        return capped(snapshot, rank, self.cap)


@dataclass(frozen=True, slots=True)
class ShortestFirst:
    cap: int | None = None

    def __call__(self, snapshot: Snapshot) -> Decision:
        rows = snapshot.trajectories
        return capped(snapshot, permutation(rows.remaining_tokens, rows.arrival), self.cap)


@dataclass(frozen=True, slots=True)
class ProgramPause:
    memory_share: float = 1.0  # of a worker's memory that its programs may fill
    acting_weight: float = 1.0  # of the context of a program whose tool works
    buffer_tokens: int = 100  # per program, for what it decodes

    def __call__(self, snapshot: Snapshot) -> Decision:
        rows = snapshot.trajectories
        live = rows.phase != Phase.DONE
        acting = rows.phase == Phase.TOOL
        weight = np.where(acting, self.acting_weight, 1.0)
        tokens: Floats = np.asarray(weight * rows.context_tokens + self.buffer_tokens, float)
        memory = snapshot.workers.kv_capacity + snapshot.workers.host_capacity
        capacity = self.memory_share * memory
        admitted = live & rows.admitted
        worker = rows.worker.copy()
        room = capacity - self.used(snapshot, admitted, worker, tokens)
        # What is marked while it reasons is paused, and may resume, once its turn ends.
        paused = live & ~admitted & (rows.phase != Phase.RUNNING)
        self.resume(rows.turns, paused, tokens, room, admitted, worker)
        room = capacity - self.used(snapshot, admitted, worker, tokens)
        for target in np.flatnonzero(room < 0).tolist():
            here = np.flatnonzero(admitted & (worker == target))
            here = here[np.lexsort((rows.context_tokens[here], ~acting[here]))]
            freed = np.cumsum(tokens[here])
            # The last one runs whatever its size.
            enough = min(int(np.searchsorted(freed, -room[target])) + 1, len(here) - 1)
            admitted[here[:enough]] = False
        return Decision(
            critical=np.zeros(len(rows), bool),
            rank=np.arange(len(rows)),
            admitted=admitted,
            level=np.full(len(rows), int(Level.LOW)),
            worker=worker,
        )

    def used(self, snapshot: Snapshot, admitted: Bools, worker: Ints, tokens: Floats) -> Floats:
        """By worker; a prompt that several programs of a worker share is counted once."""
        rows, groups, workers = snapshot.trajectories, snapshot.groups, snapshot.workers
        inside = np.flatnonzero(admitted)
        at = worker[inside]
        used = np.bincount(at, tokens[inside], len(workers))
        pair, count = np.unique(at * len(groups) + rows.group[inside], return_counts=True)
        shared = groups.prompt_tokens[pair % len(groups)] * (count - 1)
        return np.asarray(used - np.bincount(pair // len(groups), shared, len(workers)))

    def resume(
        self,
        turns: Ints,
        paused: Bools,
        tokens: Floats,
        room: Floats,
        admitted: Bools,
        worker: Ints,
    ) -> None:
        """Changes `admitted`, `worker` and `room`."""
        candidates = np.flatnonzero(paused)
        candidates = candidates[np.lexsort((candidates, turns[candidates] == 0))]
        total = np.cumsum(tokens[candidates])
        chosen = candidates[total <= np.maximum(room, 0).sum()]
        for row in chosen[np.argsort(-tokens[chosen], kind="stable")].tolist():
            target = int(np.argmax(room))
            if tokens[row] <= room[target]:
                admitted[row] = True
                worker[row] = target
                room[target] -= tokens[row]
