"""What a policy sees, and what it answers. Arrays, one row per trajectory, group or worker.

Rank: lower is more urgent. Tokens are counted in the model's own tokens, times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]

NOWHERE = -1


class Phase(IntEnum):
    """Where a trajectory is between its dispatch and its training."""

    WAITING = 0  # a turn is to be generated: queued at its worker, or held back
    RUNNING = 1  # a turn is being generated
    TOOL = 2  # its tool works
    DONE = 3  # complete; waits for its group to be trained


class Level(IntEnum):
    """How long a worker keeps the cached blocks of a trajectory: what is lower goes first."""

    UNUSED = 0
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Trajectories:
    """All that are dispatched and not yet trained."""

    group: Ints  # row in Groups
    phase: Ints  # Phase
    worker: Ints  # NOWHERE before it first runs
    admitted: Bools  # what the last decision said
    turns: Ints  # finished turns
    context_tokens: Ints  # prompt, generated and observed so far
    kv_tokens: Ints  # of these, on the GPU of its worker
    host_tokens: Ints  # of these, in the host tier of its worker
    # The order in which the waiting turns asked; trajectories are dispatched in row order.
    arrival: Ints
    tool_s: Floats  # since its tool began; 0 outside Phase.TOOL
    moved_turn: Ints  # number of the turn before which it last changed worker; -1: never
    remaining_tokens: Floats  # predicted growth of the context until the end; nan: not predicted
    remaining_turns: Floats  # predicted; nan: not predicted

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class Groups:
    order: Ints  # of dispatch, oldest lowest, unique
    version: Ints  # of the weights when it was dispatched
    prompt_tokens: Ints  # shared by its trajectories

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class Workers:
    kv_capacity: Ints  # tokens on the GPU
    host_capacity: Ints  # tokens of the host tier; 0: there is none
    slots: Ints  # requests that may generate at once
    block_tokens: int = 1  # contexts are cached in whole blocks of so many

    def __len__(self) -> int:
        return len(self.kv_capacity)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds per token to bring a context back to the GPU."""

    recompute_s: float = 74e-6
    reload_s: float = 3e-6


@dataclass(frozen=True, slots=True)
class Snapshot:
    version: int  # of the weights that generate now: the next step trains it into version + 1
    batch_groups: int  # groups per step
    max_staleness: int  # versions that a group may lie behind the step that trains it
    trajectories: Trajectories
    groups: Groups
    workers: Workers
    costs: Costs = Costs()


@dataclass(frozen=True, slots=True)
class Decision:
    """One row per trajectory of the snapshot, in its order.

    A trajectory that is not admitted finishes the turn that it is generating, and no more. A worker
    other than the snapshot's is a migration: its blocks on the old worker go.
    """

    critical: Bools
    rank: Ints  # a permutation
    admitted: Bools
    level: Ints  # Level
    worker: Ints  # NOWHERE for what is not admitted and was nowhere

    def migrations(self, snapshot: Snapshot) -> Ints:
        """Rows that leave a worker for another."""
        before = snapshot.trajectories.worker
        return np.flatnonzero((before != NOWHERE) & (self.worker != before))

    def demotions(self, snapshot: Snapshot) -> Ints:
        """Rows that were admitted and are not any more, though not complete."""
        rows = snapshot.trajectories
        return np.flatnonzero(rows.admitted & ~self.admitted & (rows.phase != Phase.DONE))


Policy = Callable[[Snapshot], Decision]


def permutation(*keys: NDArray[np.generic]) -> Ints:
    """Ranks of the rows by `keys`, the first key the strongest, ties in row order."""
    order = np.lexsort(tuple(reversed(keys)))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank
