"""Moving what is under way between workers, where one is loaded and another has nothing to take.

A move throws cached blocks away, so it needs a reason that outlives it: nobody waits for room (else
the idle worker would take them), and the difference in load is more than twice what moves and a
large share of the load. A trajectory moves at most once per turn, and only between turns.
"""

from __future__ import annotations

import numpy as np

from venusrl.schedule.snapshot import Bools, Floats, Ints, Phase, Snapshot


def balance(
    snapshot: Snapshot,
    admitted: Bools,
    worker: Ints,
    need_tokens: Floats,
    *,
    hysteresis: float = 0.25,
    moves: int = 4,
) -> Ints:
    """The workers after at most `moves` moves. `hysteresis`: share of the larger load by
    which loads must differ beyond what moves."""
    rows, workers = snapshot.trajectories, snapshot.workers
    worker = worker.copy()
    load = np.bincount(worker[admitted], need_tokens[admitted], len(workers))
    between = admitted & (rows.phase != Phase.RUNNING) & (rows.moved_turn != rows.turns)
    for _ in range(moves):
        source, target = int(np.argmax(load)), int(np.argmin(load))
        margin = hysteresis * load[source]
        gap = load[source] - load[target]
        movable = np.flatnonzero(between & (worker == source) & (2 * need_tokens + margin <= gap))
        if not len(movable):
            break
        # The most recent context costs least to compute again.
        row = movable[np.argmin(rows.context_tokens[movable])]
        worker[row] = target
        between[row] = False
        load[source] -= need_tokens[row]
        load[target] += need_tokens[row]
    return worker
