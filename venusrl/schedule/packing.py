"""Which trajectories run, and where: as many as fit the memory of the workers, most urgent first.

Context, not a count of requests, is what is scarce: a fixed cap on concurrent trajectories wastes
memory while contexts are short and thrashes when they are long. So admission follows use. Whoever
is admitted stays until it is complete, unless memory runs out; then the last in rank gives way
(demotion). Somebody new comes only below a lower mark than the one at which somebody has to go,
and contexts are counted with what they are about to grow: otherwise one would be readmitted at
once and demoted again, and each round trip recomputes a context. A worker always runs somebody,
whatever its size: one context that barely fits makes progress.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import NOWHERE, Bools, Floats, Ints, Phase, Snapshot


@dataclass(frozen=True, slots=True)
class Packing:
    """Marks are shares of the capacity that a policy gives to a worker."""

    admit_mark: float = 0.95
    demote_mark: float = 1.0
    spread_mark: float = 0.5  # free share of a worker that siblings need not leave to others
    siblings_together: bool = True  # while memory is scarce, only beside their prompt, if held


# So many of those that wait are looked at by one decision, the first by rank among those that could
# fit somewhere; the next decision goes on.
WINDOW = 512


@dataclass(frozen=True, slots=True)
class Packed:
    admitted: Bools
    worker: Ints
    waiting: int  # live trajectories that are not admitted


@dataclass(slots=True)
class Room:
    """What the workers have left, while a decision fills them."""

    capacity: Floats  # tokens
    free: Floats  # tokens, below the lower mark
    slots: Ints
    empty: Bools
    holds_prompt: Bools  # [worker, group]

    def appeal(self, scarce: bool) -> Floats:
        """Of each worker to one that is to start. While memory is scarce it is room; else it is how
        few run there: new contexts are small, and all of them will grow."""
        return self.free if scarce else np.asarray(self.slots + self.free / self.capacity)


def pays_for_prompt(group: Ints, worker: Ints, groups: int, workers: int) -> Bools:
    """Marks one row per group and worker, the first: the prompt is stored once."""
    pair = worker * groups + group
    first = np.zeros(groups * workers, np.int64)
    index = np.arange(len(pair))
    first[pair[::-1]] = index[::-1]
    return np.asarray(first[pair] == index)


def running_totals(need: Floats, worker: Ints) -> Floats:
    """Sum of the needs up to each row, within its worker; rows are sorted by worker."""
    total = np.cumsum(need)
    starts = np.flatnonzero(np.diff(worker, prepend=-1))
    before = np.repeat(total[starts] - need[starts], np.diff(starts, append=len(need)))
    return np.asarray(total - before)


def pack(
    snapshot: Snapshot,
    rank: Ints,
    need_tokens: Floats,
    capacity: Floats,
    settings: Packing,
    away: Bools,
) -> Packed:
    """`need_tokens`: of each trajectory, without its prompt; `capacity`: tokens per worker; `away`:
    those that get no place."""
    rows = snapshot.trajectories
    live = (rows.phase != Phase.DONE) & ~away
    by_rank = np.empty(len(rank), np.int64)
    by_rank[rank] = np.arange(len(rank))
    admitted = np.zeros(len(rows), bool)
    worker = rows.worker.copy()
    inside = live & rows.admitted & (worker != NOWHERE)
    room = keep(snapshot, by_rank[inside[by_rank]], need_tokens, capacity, settings, admitted)
    # A turn under way keeps its memory until it ends, admitted or not.
    leaving = live & ~admitted & (worker != NOWHERE) & (rows.phase == Phase.RUNNING)
    room.free -= np.bincount(worker[leaving], need_tokens[leaving], len(room.free))
    more = np.where(leaving, 0.0, need_tokens)
    outside = live & ~rows.admitted
    fill(snapshot, by_rank[outside[by_rank]], more, room, settings, admitted, worker)
    return Packed(admitted, worker, int(live.sum() - admitted.sum()))


def keep(
    snapshot: Snapshot,
    inside: Ints,
    need_tokens: Floats,
    capacity: Floats,
    settings: Packing,
    admitted: Bools,
) -> Room:
    """Those under way stay, by rank, while they fit. Changes `admitted`; returns what is left."""
    rows, groups, count = snapshot.trajectories, snapshot.groups, len(snapshot.workers)
    inside = inside[np.argsort(rows.worker[inside], kind="stable")]
    at, group = rows.worker[inside], rows.group[inside]
    pays = pays_for_prompt(group, at, len(groups), count)
    need = need_tokens[inside] + groups.prompt_tokens[group] * pays
    alone = np.diff(at, prepend=-1) != 0
    stays = alone | (running_totals(need, at) <= settings.demote_mark * capacity[at])
    at, group, need = at[stays], group[stays], need[stays]
    admitted[inside[stays]] = True
    taken = np.bincount(at, minlength=count)
    holds_prompt = np.zeros((count, len(groups)), bool)
    holds_prompt[at, group] = True
    return Room(
        capacity=capacity,
        free=settings.admit_mark * capacity - np.bincount(at, need, count),
        slots=snapshot.workers.slots - taken,
        empty=taken == 0,
        holds_prompt=holds_prompt,
    )


def fill(
    snapshot: Snapshot,
    outside: Ints,
    need_tokens: Floats,
    room: Room,
    settings: Packing,
    admitted: Bools,
    worker: Ints,
) -> None:
    """Those outside come in, by rank, where they fit. Changes `room`, `admitted` and `worker`."""
    rows, groups, gpu = snapshot.trajectories, snapshot.groups, snapshot.workers.kv_capacity
    # Sharing prompts saves memory and unbalances workers: it pays only while memory is scarce, when
    # others take the room that siblings leave elsewhere.
    scarce = need_tokens[outside].sum() > room.free.sum()
    together = settings.siblings_together and scarce
    if not room.empty.any():
        outside = outside[need_tokens[outside] <= room.free.max()]
    outside = outside[:WINDOW]
    need, group = need_tokens[outside], rows.group[outside]
    prompt = groups.prompt_tokens[group]
    held = room.holds_prompt[:, group].any(axis=0)
    # One that still finishes its turn, or has moved in this turn already, stays where it is, unless
    # its context has outgrown that worker.
    outgrown = np.minimum(rows.context_tokens, gpu.max()) > gpu[rows.worker]
    moved = (rows.moved_turn == rows.turns) & ~outgrown
    pinned = (rows.phase[outside] == Phase.RUNNING) | moved[outside]
    cached = (rows.kv_tokens[outside] > 0) | (rows.host_tokens[outside] > 0)
    waits = np.ones(len(outside), bool)
    if together:
        # Room only shrinks: most of those who find none beside their prompt are known at once.
        open_room = np.where(room.slots > 0, room.free, -np.inf)
        beside = np.where(room.holds_prompt[:, group], open_room[:, None], -np.inf).max(axis=0)
        waits = ~held | (need <= beside) | pinned | cached
    spread = False
    while True:
        open_room = np.where(room.slots > 0, room.free, -np.inf)
        if spread:
            open_room[room.free < settings.spread_mark * room.capacity] = -np.inf
        promising = waits
        if not room.empty.any():
            # A sibling may fit beside the prompt where a stranger does not.
            promising = waits & (need + np.where(held, 0, prompt) <= open_room.max())
        if not promising.any():
            if spread or not together:
                return
            # Nobody else wants what is left: where it is much, siblings need not wait.
            spread, waits = True, ~admitted[outside]
            continue
        index = int(promising.argmax())
        waits[index] = False
        row, holds = outside[index], room.holds_prompt[:, group[index]]
        wanted = need[index] + prompt[index] * ~holds
        fits = (wanted <= open_room) | (room.empty & (room.slots > 0))
        # Where workers differ in size, one that none of them holds goes to the largest.
        fits &= np.minimum(rows.context_tokens[row], gpu.max()) <= gpu
        target = choose(
            rows.worker[row],
            bool(pinned[index]),
            bool(cached[index]),
            fits,
            room.appeal(scarce),
            holds & (together and not spread),
        )
        if target == NOWHERE:
            continue
        admitted[row] = True
        worker[row] = target
        room.free[target] -= wanted[target]
        room.slots[target] -= 1
        room.empty[target] = False
        holds[target] = True
        held |= group == group[index]


def choose(
    current: int, pinned: bool, cached: bool, fits: Bools, appeal: Floats, beside: Bools
) -> int:
    """The worker for one that is to start: where its blocks are, else, of those `beside` its
    siblings, or of all if there are none, the most appealing; NOWHERE if none fits."""
    if current != NOWHERE and (pinned or (cached and fits[current])):
        return int(current) if fits[current] else NOWHERE
    where = fits & beside if beside.any() else fits
    return int(np.argmax(np.where(where, appeal, -np.inf))) if where.any() else NOWHERE
