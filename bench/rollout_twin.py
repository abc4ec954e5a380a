"""The fleet of `rollout_fleet`, simulated with constants that were fitted to its engines, and how
far the two agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.rollout_fleet import (
    BATCH,
    BLOCK,
    ENGINES,
    GROUP,
    SLOTS,
    STEP_TOKENS,
    WORKLOAD,
    Entrant,
    Run,
)
from venusrl.schedule.snapshot import Floats
from venusrl.simulate.cluster import Cluster, Contender, Scenario, Step
from venusrl.simulate.engines import Rules
from venusrl.simulate.fitted import Fit, fit, stretch
from venusrl.simulate.hardware import EngineModel

# Of the runs of these the constants are fitted: with and without much prefill.
FITTED = ("venus", "capped_fcfs")


def model_of(fitted: Fit, blocks: int, stretched: float = 1.0) -> EngineModel:
    """An engine with so many blocks, of which one is vLLM's own. `stretched`: seconds on the wall
    for one of the processor."""
    return fitted.model(
        kv_capacity=(blocks - 1) * BLOCK,
        step_tokens=STEP_TOKENS,
        max_running=SLOTS,
        block_tokens=BLOCK,
        stretch=stretched,
    )


def simulate(model: EngineModel, entrant: Entrant, seed: int, steps: int) -> list[Step]:
    """What `rollout_fleet.Run` does, with the same groups. Our class evicts by level and rank, and
    leaves a block free for each turn under way; both evict a block when somebody needs it."""
    rules = Rules(
        by_rank=entrant.ours or entrant.by_rank,
        by_level=entrant.ours,
        displace=entrant.ours,
        reserve_tokens=BLOCK,
        evict_tokens=1,
    )
    scenario = Scenario(model, WORKLOAD, BATCH, entrant.async_factor, GROUP, ENGINES)
    contender = Contender("", entrant.policy, rules, interval_s=max(entrant.pause_s, 0.05))
    return Cluster(scenario, contender, seed).run(steps)


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy on one seed. Seconds per step of the trainer, processor seconds of the engines."""

    policy: str
    seed: int
    real_s: list[float]
    simulated_s: list[float]
    real_cpu_s: list[float]
    simulated_cpu_s: list[float]


def compare(model: EngineModel, stretched: float, name: str, run: Run) -> Compared:
    """`stretched`: what the model's seconds are of the processor's."""
    steps = simulate(model, run.entrant, run.seed, len(run.step_times))
    return Compared(
        policy=name,
        seed=run.seed,
        real_s=[step.wall_s for step in run.step_times],
        simulated_s=np.diff([0.0, *(step.time_s for step in steps)]).tolist(),
        real_cpu_s=[step.cpu_s for step in run.step_times],
        simulated_cpu_s=np.diff(
            [0.0, *(step.counts["busy_s"] / stretched for step in steps)]
        ).tolist(),
    )


def validate(
    fitted_on: Sequence[Run], tested_on: Mapping[str, Sequence[Run]], blocks: int
) -> dict[str, Any]:
    """`tested_on`: runs by policy, of seeds that the constants are not fitted on."""
    learned = np.array([row for run in fitted_on for row in run.engine_steps])
    runs = [run for rows in tested_on.values() for run in rows]
    unseen = np.array([row for run in runs for row in run.engine_steps])
    fitted, stretched = fit(learned), stretch(learned)
    model = model_of(fitted, blocks, stretched)
    compared = [
        compare(model, stretched, name, run) for name, rows in tested_on.items() for run in rows
    ]
    return {
        "step_time_error": error(compared, "real_s", "simulated_s"),
        "cpu_time_error": error(compared, "real_cpu_s", "simulated_cpu_s"),
        "run_time_error": error(compared, "real_s", "simulated_s", whole=True),
        "engine_step_error": round(float(np.median(fitted.errors(unseen))), 4),
        "ranking": ranking(compared, "real_s"),
        "simulated_ranking": ranking(compared, "simulated_s"),
        "constants": asdict(fitted),
        "wall_per_cpu": round(stretched, 3),
        "steps": {"fitted": len(learned), "tested": len(unseen)},
        "compared": [asdict(one) for one in compared],
    }


def error(compared: Sequence[Compared], real: str, simulated: str, *, whole: bool = False) -> float:
    """The median relative error over steps, or over whole runs."""
    errors: list[float] = []
    for one in compared:
        pairs = np.array([getattr(one, real), getattr(one, simulated)])
        taken: Floats = pairs.sum(axis=1, keepdims=True) if whole else pairs
        errors += (np.abs(taken[1] - taken[0]) / taken[0]).tolist()
    return round(float(np.median(errors)), 4)


def ranking(compared: Sequence[Compared], times: str) -> list[str]:
    """Policies, the fastest first, by the mean time of a step. Steps train the same number of
    groups, mostly the same ones."""
    of: dict[str, list[float]] = {}
    for one in compared:
        of.setdefault(one.policy, []).extend(getattr(one, times))
    return sorted(of, key=lambda name: float(np.mean(of[name])))
