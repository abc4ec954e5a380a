"""How long one decision takes, on a snapshot of 10,000 trajectories on 64 workers."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import NOWHERE, Groups, Phase, Snapshot, Trajectories, Workers

SIZE = 8


def busy_snapshot(trajectories: int = 10_000, workers: int = 64, seed: int = 0) -> Snapshot:
    """In steady state: memory is full, and most wait."""
    random = np.random.default_rng(seed)
    groups = trajectories // SIZE
    inside = random.random(trajectories) < 0.06
    phase = np.where(
        inside,
        random.choice([Phase.RUNNING, Phase.TOOL], trajectories),
        random.choice([Phase.WAITING, Phase.DONE], trajectories, p=[0.8, 0.2]),
    )
    turns = random.integers(0, 100, trajectories)
    return Snapshot(
        version=20,
        batch_groups=groups * 2 // 3,
        max_staleness=4,
        trajectories=Trajectories(
            group=np.repeat(np.arange(groups), SIZE),
            phase=phase.astype(np.int64),
            worker=np.where(inside, random.integers(0, workers, trajectories), NOWHERE),
            admitted=inside,
            turns=turns,
            context_tokens=4000 + 950 * turns,
            kv_tokens=np.where(inside, 4000 + 950 * turns, 0),
            host_tokens=np.zeros(trajectories, np.int64),
            arrival=np.arange(trajectories),
            tool_s=random.random(trajectories),
            moved_turn=np.full(trajectories, -1),
            remaining_tokens=random.random(trajectories) * 40_000,
            remaining_turns=random.random(trajectories) * 40,
        ),
        groups=Groups(
            order=np.arange(groups),
            version=np.sort(random.integers(18, 21, groups)),
            prompt_tokens=np.full(groups, 4000),
        ),
        workers=Workers(
            kv_capacity=np.full(workers, 560_000),
            host_capacity=np.zeros(workers, np.int64),
            slots=np.full(workers, 256),
        ),
    )


def decision_ms(rounds: int = 50) -> float:
    """Median of the processor time of one decision that also admits a few."""
    snapshot, policy = busy_snapshot(), Priority()
    settled = policy(snapshot)
    rows = snapshot.trajectories
    # All but one in fifty of what the first decision admits is under way already.
    kept = settled.admitted & (np.arange(len(rows)) % 50 > 0)
    snapshot = replace(snapshot, trajectories=replace(rows, admitted=kept, worker=settled.worker))
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        policy(snapshot)
        taken.append(time.process_time() - begin)
    return float(np.median(taken)) * 1000
