"""The simulator against two real vLLM engines: the time of the trainer's steps, and who is faster.

The constants of an engine are fitted to the steps that engines took in the runs of one seed, in the
same hour on the same machine; then the simulator runs other seeds, which the engines have run as
well: the same groups, lengths, tool times and policies. Real time on the wall is compared, and
the processor time of the engines, which neighbours on the machine change less.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.common import host_facts
from bench.rollout_fleet import (
    BLOCKS,
    MODEL_TOKENS,
    VOCABULARY,
    Effort,
    Fleet,
    Run,
)
from bench.rollout_model import save_model
from bench.rollout_real import SETTINGS, entrants
from bench.rollout_twin import model_of, simulate
from venusrl.schedule.snapshot import Floats
from venusrl.simulate.fitted import fit, stretch
from venusrl.simulate.hardware import EngineModel

FITTED_SEED, TESTED_SEED = 11, 1
# Of these the constants are fitted: with and without much prefill.
FITTED = ("venus", "capped_fcfs")


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
    fitted_on: Sequence[Run], tested_on: dict[str, list[Run]], blocks: int
) -> dict[str, Any]:
    """`tested_on`: runs by policy, of seeds that the constants are not fitted on."""
    learned = np.array([row for run in fitted_on for row in run.engine_steps])
    runs = [run for rows in tested_on.values() for run in rows]
    unseen = np.array([row for run in runs for row in run.engine_steps])
    fitted, stretched = fit(learned), stretch(unseen)
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


async def real_runs(
    place: Path, pressure: str, steps: int
) -> tuple[list[Run], dict[str, list[Run]]]:
    settings = json.loads(SETTINGS.read_text())[pressure]["best"]
    chosen, blocks = entrants(settings), BLOCKS[pressure]
    fitted_on: list[Run] = []
    tested_on: dict[str, list[Run]] = {name: [] for name in chosen}
    async with Fleet(place, blocks, ours=True) as ours, Fleet(place, blocks, ours=False) as stock:

        async def one(name: str, seed: int, count: int) -> Run:
            run = Run(ours if chosen[name].ours else stock, chosen[name], seed)
            await run.measure(Effort(warm_up=0, measured=count))
            print(f"  {name} seed {seed}: {run.step_times}", file=sys.stderr)
            return run

        for name in FITTED:
            fitted_on.append(await one(name, FITTED_SEED, 1))
        for name in chosen:
            tested_on[name].append(await one(name, TESTED_SEED, steps))
    return fitted_on, tested_on


@click.command(help=__doc__)
@click.option("--pressure", type=click.Choice(sorted(BLOCKS)), default="5", show_default=True)
@click.option("--steps", default=2, show_default=True, help="Of the trainer, of each policy.")
def main(pressure: str, steps: int) -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="simulator-validation-") as name:
        place = Path(name)
        save_model(place / "model", VOCABULARY, MODEL_TOKENS)
        fitted_on, tested_on = asyncio.run(real_runs(place, pressure, steps))
    found = validate(fitted_on, tested_on, BLOCKS[pressure])
    for key in ("step_time_error", "cpu_time_error", "engine_step_error", "ranking"):
        print(f"  {key}: {found[key]}", file=sys.stderr)
    print(
        json.dumps(
            {
                "bench": "simulator_validation",
                **found,
                "pressure": pressure,
                "wall_s": round(time.monotonic() - begun, 1),
                "host": host_facts(),
            }
        )
    )


if __name__ == "__main__":
    main()
