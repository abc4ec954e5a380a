"""Which trajectories run, and where: as many as fit the memory of the workers, most urgent first.

Context, not a count of requests, is what is scarce: a fixed cap on concurrent trajectories wastes
memory while contexts are short and thrashes when they are long. So admission follows use. Whoever is
admitted stays until it is complete, unless memory runs out; then the last in rank gives way
(demotion). Somebody new comes only below a lower mark than the one at which somebody has to go, and
contexts are counted with what they are about to grow: otherwise one would be readmitted at once and
demoted again, and each round trip recomputes a context. A worker always runs somebody, whatever its
size: one context that barely fits makes progress.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import NOWHERE, Bools, Floats, Ints, Phase, Snapshot


@dataclass(frozen=True, slots=True)
class Packing:
    """Marks are shares of the capacity that a policy gives to a worker."""

    admit_mark: float = 0.85
    demote_mark: float = 1.0
    siblings_together: bool = True  # prefer a worker that holds the prompt already
    starts: int = 256  # at most so many are admitted by one decision; the next goes on


@dataclass(frozen=True, slots=True)
class Packed:
    admitted: Bools
    worker: Ints
    outside: Ints  # rows that wait for room, by rank
    free_tokens: Floats  # per worker, below the lower mark


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
    snapshot: Snapshot, rank: Ints, need_tokens: Floats, capacity: Floats, settings: Packing
) -> Packed:
    """`need_tokens`: of each trajectory, without its prompt; `capacity`: tokens per worker."""
    rows, groups, count = snapshot.trajectories, snapshot.groups, len(snapshot.workers)
    live = rows.phase != Phase.DONE
    admitted = np.zeros(len(rows), bool)
    worker = rows.worker.copy()
    used = np.zeros(count)
    taken = np.zeros(count, np.int64)
    holds_prompt = np.zeros((count, len(groups)), bool)

    inside = np.flatnonzero(live & rows.admitted & (worker != NOWHERE))
    if len(inside):
        inside = inside[np.argsort(worker[inside] * len(rows) + rank[inside])]
        at, group = worker[inside], rows.group[inside]
        pays = pays_for_prompt(group, at, len(groups), count)
        need = need_tokens[inside] + groups.prompt_tokens[group] * pays
        alone = np.diff(at, prepend=-1) != 0
        stays = alone | (running_totals(need, at) <= settings.demote_mark * capacity[at])
        at, group, need = at[stays], group[stays], need[stays]
        admitted[inside[stays]] = True
        used = np.bincount(at, need, count)
        taken = np.bincount(at, minlength=count)
        holds_prompt[at, group] = True

    free = settings.admit_mark * capacity - used
    slots = snapshot.workers.slots - taken
    outside = np.flatnonzero(live & ~rows.admitted)
    outside = outside[np.argsort(rank[outside])]
    need, group = need_tokens[outside], rows.group[outside]
    prompt = groups.prompt_tokens[group]
    held = holds_prompt[:, group].any(axis=0)
    # One that still finishes its turn, or has moved in this turn already, stays where it is.
    pinned = (rows.phase == Phase.RUNNING) | (rows.moved_turn == rows.turns)
    waits = np.ones(len(outside), bool)
    for _ in range(settings.starts):
        empty = taken == 0
        open_room = np.where(slots > 0, free, -np.inf)
        if empty.any():
            promising = waits
        else:
            # A sibling may fit beside the prompt where a stranger does not.
            promising = waits & (need + np.where(held, 0, prompt) <= open_room.max(initial=-np.inf))
        index = int(promising.argmax()) if len(promising) else 0
        if not len(promising) or not promising[index]:
            break
        waits[index] = False
        row, mine = outside[index], group[index]
        wanted = need[index] + prompt[index] * ~holds_prompt[:, mine]
        fits = (wanted <= open_room) | (empty & (slots > 0))
        target = choose(rows.worker[row], pinned[row], rows.kv_tokens[row], fits, free,
                        holds_prompt[:, mine], settings)  # fmt: skip
        if target == NOWHERE:
            continue
        admitted[row] = True
        worker[row] = target
        free[target] -= wanted[target]
        slots[target] -= 1
        taken[target] += 1
        holds_prompt[target, mine] = True
        held |= group == mine
    return Packed(admitted, worker, outside[~admitted[outside]], free)


def choose(
    current: int,
    pinned: bool,
    cached_tokens: int,
    fits: Bools,
    free: Floats,
    holds_prompt: Bools,
    settings: Packing,
) -> int:
    """The worker for one that is to start: where its blocks are, else where its siblings' prompt is,
    else where most room is; NOWHERE if none fits."""
    if current != NOWHERE and (pinned or (cached_tokens > 0 and fits[current])):
        return int(current) if fits[current] else NOWHERE
    if not fits.any():
        return NOWHERE
    beside = fits & holds_prompt
    where = beside if settings.siblings_together and beside.any() else fits
    return int(np.argmax(np.where(where, free, -np.inf)))
