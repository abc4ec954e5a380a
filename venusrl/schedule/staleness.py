"""Which groups the next step trains, so that none is ever older than the bound.

A group of version u may be in step v (which trains version v into v + 1) if v - u ≤ the bound. At
most `batch` groups fit a step, so a group can be forced before its own last step: groups of the
same deadline queue behind each other. By default the trainer waits for a forced group that is
incomplete; where dropping is allowed, one that is at the bound itself goes, and whoever calls
counts it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import Bools, Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step takes: rows of groups."""

    trained: Ints
    dropped: Ints


def require_feasible(batch: int, in_flight: int, max_staleness: int) -> None:
    """ValueError where even a perfect order would break the bound."""
    if batch < 1 or in_flight < batch:
        raise ValueError(f"schedule: {in_flight} groups in flight are fewer than a step's {batch}")
    if in_flight > batch * (max_staleness + 1):
        raise ValueError(
            f"schedule: {in_flight} groups in flight with {batch} per step cannot all be trained "
            f"within a staleness of {max_staleness}; at most {batch * (max_staleness + 1)} can"
        )


def latest_steps(version: Ints, order: Ints, batch: int, max_staleness: int) -> Ints:
    """For each group the last step that can train it if all others are to keep the bound too."""
    deadline = version + max_staleness
    by_deadline = np.lexsort((order, deadline))
    latest = deadline[by_deadline]
    # From the end: `batch` groups must be done a step before the `batch` behind them.
    for end in range(len(latest) - batch, 0, -batch):
        begin = max(0, end - batch)
        behind = latest[begin + batch : end + batch]
        latest[begin:end] = np.minimum(latest[begin:end], behind - 1)
    result: Ints = np.empty(len(latest), np.int64)
    result[by_deadline] = latest
    return result


def select_batch(
    version: Ints,
    order: Ints,
    complete: Bools,
    *,
    step: int,
    batch: int,
    max_staleness: int,
    drop: bool = False,
) -> Batch | None:
    """What step `step` trains; None where the trainer has to wait.

    `version`, `order` and `complete` describe the groups that are dispatched and not yet trained.
    Forced groups first, then the oldest complete ones.
    """
    late = ~complete & (version + max_staleness <= step) if drop else np.zeros(len(order), bool)
    forced = (latest_steps(version, order, batch, max_staleness) <= step) & ~late
    if np.any(forced & ~complete):
        return None
    rows = np.flatnonzero(complete)
    if len(rows) < batch:
        return None
    first = rows[np.lexsort((order[rows], ~forced[rows]))][:batch]
    return Batch(trained=first, dropped=np.flatnonzero(late))
