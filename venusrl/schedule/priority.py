"""The policy of this project: groups in the order in which they unblock steps, residency by memory.

One decision for all places. The groups that the next steps need come first: those that the
staleness bound forces, then the oldest. Memory decides how many run; whoever runs keeps its
blocks until it is complete, or until its tool has worked for longer than its place is worth, and
whoever does not run holds none that anybody needs. Priority alone is
worth little: most of the gain is that contexts are not computed twice and that engines are full.

With a host tier a context that loses its place on the GPU comes back at the price of a copy instead
of a computation. Then memory that tools keep idle is worth filling: admission counts on the share
of contexts whose tools work, as far as host memory holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from venusrl.schedule.migration import balance
from venusrl.schedule.packing import Packing, pack
from venusrl.schedule.snapshot import (
    Bools,
    Decision,
    Floats,
    Ints,
    Level,
    Phase,
    Snapshot,
)
from venusrl.schedule.staleness import latest_steps

# Contexts of idle tools are overbooked only where bringing one back is much cheaper than this.
CHEAP_RELOAD = 0.2
# Decisions are made every few seconds: what is gained below is lost until the next one.
LEAST_RELEASE_S = 10.0
# Times what coming back costs: so who gives up too soon wastes a third more at most than who keeps
# its place, and of tools that work for minutes most is still saved.
RELEASE_TIMES = 3.0


@dataclass(frozen=True, slots=True)
class Priority:
    packing: Packing = field(default_factory=Packing)
    # Counted on top of each context; None: half of what turns have added, in the mean.
    growth_tokens: float | None = None
    order: str = "oldest"  # or "longest": by the predicted remaining work of groups
    migrate: bool = True
    release: bool = True  # the place of one whose tool works for long goes to who waits
    host_share: float = 0.9  # of the host tier that may be promised
    overbook: float = 1.25  # with a host tier: beyond what tools leave free, so that somebody waits

    def __post_init__(self) -> None:
        if self.order not in ("oldest", "longest"):
            raise ValueError(f"priority: order is {self.order!r}, not 'oldest' or 'longest'")
        growth = 0.0 if self.growth_tokens is None else self.growth_tokens
        for name, value in (("growth_tokens", growth), ("host_share", self.host_share)):
            if not 0 <= value < np.inf:
                raise ValueError(f"priority: {name} is {value!r}, not a number from 0 on")
        if not 0 < self.overbook < np.inf:
            raise ValueError(f"priority: overbook is {self.overbook!r}, not a number above 0")

    def __call__(self, snapshot: Snapshot) -> Decision:
        rows, groups = snapshot.trajectories, snapshot.groups
        live = rows.phase != Phase.DONE
        urgency = self.urgency(snapshot, live)
        rank = ranks(snapshot, urgency, live)
        # A context that is shorter than what its group's prompt was said to be takes nothing more.
        own_tokens = np.maximum(0, rows.context_tokens - groups.prompt_tokens[rows.group])
        growth = mean_growth(own_tokens, rows.turns) / 2
        if self.growth_tokens is not None:
            growth = self.growth_tokens
        need = whole_blocks(own_tokens + growth, snapshot.workers.block_tokens)
        capacity = self.capacity(snapshot, live)
        away = np.zeros(len(rows), bool)
        if self.release and need[live].sum() > capacity.sum():
            away = long_away(snapshot)
        packed = pack(snapshot, rank, need, capacity, self.packing, away)
        worker = packed.worker
        if self.migrate and not packed.waiting:
            worker = balance(snapshot, packed.admitted, worker, need)
        level = np.where(packed.admitted, int(Level.HIGH), int(Level.LOW))
        level[~live] = int(Level.UNUSED)
        critical = live & (urgency < snapshot.batch_groups)[rows.group]
        return Decision(critical, rank, packed.admitted, level, worker)

    def urgency(self, snapshot: Snapshot, live: Bools) -> Ints:
        """Per group: its place in the order in which groups should become complete."""
        rows, groups = snapshot.trajectories, snapshot.groups
        latest = latest_steps(
            groups.version, groups.order, snapshot.batch_groups, snapshot.max_staleness
        )
        unforced = latest > snapshot.version
        if self.order == "longest":
            left = np.where(live, np.nan_to_num(rows.remaining_tokens), 0.0)
            order = np.lexsort(
                (groups.order, -np.bincount(rows.group, left, len(groups)), unforced)
            )
        else:
            order = np.lexsort((groups.order, unforced))
        place = np.empty(len(groups), np.int64)
        place[order] = np.arange(len(groups))
        return place

    def capacity(self, snapshot: Snapshot, live: Bools) -> Floats:
        """Tokens of context that may be under way on each worker."""
        rows, workers, costs = snapshot.trajectories, snapshot.workers, snapshot.costs
        gpu = workers.kv_capacity.astype(float)
        if not workers.host_capacity.any() or costs.reload_s > CHEAP_RELOAD * costs.recompute_s:
            return gpu
        inside = live & rows.admitted
        idle = rows.context_tokens[inside & (rows.phase == Phase.TOOL)].sum()
        # Shrunk towards nothing idle while little is under way.
        share = idle / (rows.context_tokens[inside].sum() + gpu.sum() / 4)
        wanted = gpu * self.overbook / (1 - min(0.9, share)) / self.packing.admit_mark
        return np.asarray(np.minimum(wanted, gpu + self.host_share * workers.host_capacity))


def whole_blocks(tokens: Floats, block_tokens: int) -> Floats:
    """What contexts of so many tokens take of a memory in blocks."""
    return np.asarray(np.ceil(tokens / block_tokens) * block_tokens)


def mean_growth(own_tokens: Ints, turns: Ints) -> float:
    """Tokens that a turn adds to its context; 0 before anybody has finished one."""
    return float(own_tokens[turns > 0].sum() / max(1, turns.sum()))


def long_away(snapshot: Snapshot) -> Bools:
    """Trajectories whose tools have worked for so long that their place is better given away.

    A context that waits costs its share of memory for as long as it waits; one that comes back
    costs its share of the time in which all of memory is computed. So the two are equal after that
    time, whatever the context. When a tool ends nobody knows, and most that have worked for so
    long soon do: places are kept for some times as long.
    """
    rows, workers = snapshot.trajectories, snapshot.workers
    all_s = snapshot.costs.recompute_s * float(workers.kv_capacity.mean())
    limit_s = max(LEAST_RELEASE_S, RELEASE_TIMES * all_s)
    return np.asarray((rows.phase == Phase.TOOL) & (rows.tool_s > limit_s))


def ranks(snapshot: Snapshot, urgency: Ints, live: Bools) -> Ints:
    """Trajectories by urgency of their groups; within one, the longest context first: it is the
    most dear to compute again. Complete ones come last.

    Where the next step needs every group (f = 1) their order is worth nothing, and what counts is
    that engines do not run dry behind the last few. Then the shortest context comes first, of all
    (least attained service): nobody begins late, and who is long is found out early.
    """
    rows = snapshot.trajectories
    if len(snapshot.groups) > snapshot.batch_groups:
        key = (urgency[rows.group] << 32) - rows.context_tokens
    else:
        key = rows.context_tokens.copy()
    key[~live] = np.iinfo(np.int64).max
    order = np.argsort(key, kind="stable")
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows))
    return rank
