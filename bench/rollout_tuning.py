"""The baselines of `rollout_real` at their best settings, found in its simulated twin.

The constants are fitted to steps of the engines themselves. A sweep on the engines would take
hours, and on few seeds would choose by chance; the simulator runs more steps of more seeds for
each setting. None of these seeds is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.rollout_fleet import BLOCKS, WORKLOAD, Entrant, Fleet, Run
from bench.rollout_fleet import Effort as RunEffort
from bench.rollout_twin import model_of, simulate
from venusrl.simulate.contenders import Ladder
from venusrl.simulate.fitted import Fit, fit
from venusrl.simulate.hardware import EngineModel
from venusrl.simulate.sweep import tune

SEEDS = (1_000_003, 1_000_004, 1_000_005, 1_000_006)
WARM_UP, MEASURED = 2, 6
IN_FLIGHT = 24
# With what `ProgramPause` adds for growth.
LONGEST = WORKLOAD.max_tokens + 10
LADDERS = {
    "capped_fcfs": Ladder(first=5, step=1, lowest=1, highest=IN_FLIGHT),
    "oldest_first": Ladder(first=5, step=1, lowest=1, highest=IN_FLIGHT),
    "program_pause": Ladder(first=1.0, step=0.1, lowest=0.1),
}
# At the lower pressure a search begins where nothing is held back.
FIRST = {"1": {"capped_fcfs": IN_FLIGHT, "oldest_first": IN_FLIGHT}}

Entrants = Callable[[Mapping[str, float]], dict[str, Entrant]]


async def calibrate(fleet: Fleet, entrants: Entrants) -> Fit:
    """Runs one step of capped FCFS: decoding and much prefill."""
    settings = {name: ladder.first for name, ladder in LADDERS.items()}
    run = Run(fleet, entrants(settings)["capped_fcfs"], SEEDS[0])
    await run.measure(RunEffort(warm_up=0, measured=1))
    return fit(np.array(run.engine_steps))


def best_settings(fitted: Fit, pressure: str, entrants: Entrants) -> dict[str, Any]:
    """Of every baseline, with all that was tried, in trained tokens per hour."""
    model = model_of(fitted, BLOCKS[pressure])
    best: dict[str, float] = {}
    tried: dict[str, dict[str, int]] = {}
    for name, ladder in LADDERS.items():
        first = FIRST.get(pressure, {}).get(name, ladder.first)
        start = Ladder(first, ladder.ratio, ladder.step, ladder.lowest, ladder.highest)

        def value_of(settings: dict[str, float], name: str = name) -> float:
            if name == "program_pause" and settings[name] * model.kv_capacity < LONGEST:
                raise ValueError(f"{name}: the longest context would never run")
            entrant = entrants(dict.fromkeys(LADDERS, settings[name]))[name]
            return float(np.mean([speed(model, entrant, seed) for seed in SEEDS]))

        found = tune({name: start}, value_of)
        best[name] = found.settings[name]
        rows = sorted((at[name], value) for at, value in found.tried)
        tried[name] = {str(at): round(value) for at, value in rows if np.isfinite(value)}
        print(f"  ρ≈{pressure} {name}: {best[name]:g} of {tried[name]}", file=sys.stderr)
    return {"best": best, "tried": tried}


def speed(model: EngineModel, entrant: Entrant, seed: int) -> float:
    """Trained tokens per hour."""
    steps = simulate(model, entrant, seed, WARM_UP + MEASURED)
    time_s = steps[-1].time_s - steps[WARM_UP - 1].time_s
    return 3600 * sum(step.tokens for step in steps[WARM_UP:]) / time_s
