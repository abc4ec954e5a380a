"""Moving what is under way between workers, where one is loaded and another has nothing to take.

A move throws cached blocks away, so it needs a reason that outlives it: nobody waits for room (else
the idle worker would take them), and the other worker has little to do even with what moves. A
smaller difference is gone before the move has paid. A trajectory moves at most once per turn, and
only between turns.
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
    share: float = 0.25,
    moves: int = 4,
) -> Ints:
    """The workers after at most `moves` moves. `share`: of the load that is left where one leaves,
    what there may be at most, with it, where it goes."""
    rows, workers = snapshot.trajectories, snapshot.workers
    worker = worker.copy()
    load = np.bincount(worker[admitted], need_tokens[admitted], len(workers))
    seats = workers.slots - np.bincount(worker[admitted], minlength=len(workers))
    between = admitted & (rows.phase != Phase.RUNNING) & (rows.moved_turn != rows.turns)
    for _ in range(moves):
        source, target = int(np.argmax(load)), int(np.argmin(load))
        less = load[target] + need_tokens <= share * (load[source] - need_tokens)
        # Workers need not be equal.
        fits = (rows.context_tokens <= workers.kv_capacity[target] - load[target]) & (
            seats[target] > 0
        )
        movable = np.flatnonzero(between & (worker == source) & less & fits)
        if not len(movable):
            break
        # The most recent context costs least to compute again.
        row = movable[np.argmin(rows.context_tokens[movable])]
        worker[row] = target
        between[row] = False
        load[source] -= need_tokens[row]
        load[target] += need_tokens[row]
        seats[source] += 1
        seats[target] -= 1
    return worker
