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
from pathlib import Path

import click

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
from bench.rollout_twin import FITTED, validate

FITTED_SEED, TESTED_SEED = 11, 1


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
