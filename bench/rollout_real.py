"""Trained tokens per hour of five policies on two real vLLM engines of this machine.

A model with random weights, large enough that prefill hurts; lengths and tool times are drawn from
a seed and forced, so the weights do not matter, and every policy sees the same groups. Memory is
set for two pressures (mean live context over what the engines can hold), nominally 5 and 1.
Baselines run at the settings of a sweep (`--tune`: in the simulated twin, with constants of these
engines), which is committed beside this file; ours runs at its defaults.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
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
    Entrant,
    Fleet,
    Measured,
    Run,
)
from bench.rollout_model import save_model
from bench.rollout_tuning import best_settings, calibrate
from bench.rollout_twin import FITTED, validate
from venusrl.schedule.baselines import Fcfs, OldestFirst, ProgramPause
from venusrl.schedule.priority import Priority
from venusrl.simulate.measure import paired_ratio

SETTINGS = Path(__file__).parent / "rollout_real_settings.json"


def entrants(settings: Mapping[str, float]) -> dict[str, Entrant]:
    return {
        "venus": Entrant(Priority(), ours=True),
        "sync_fcfs": Entrant(Fcfs(), async_factor=1.0),
        "capped_fcfs": Entrant(Fcfs(round(settings["capped_fcfs"]))),
        "oldest_first": Entrant(OldestFirst(round(settings["oldest_first"])), by_rank=True),
        # Its source decides every five seconds, which is half a turn there.
        "program_pause": Entrant(
            ProgramPause(memory_share=settings["program_pause"], buffer_tokens=10), pause_s=0.1
        ),
    }


async def runs(
    place: Path, pressure: str, chosen: dict[str, Entrant], seeds: tuple[int, ...], effort: Effort
) -> tuple[dict[str, list[Measured]], dict[str, list[Run]]]:
    """All entrants on all seeds. Both pairs of engines stand meanwhile, idle when it is not their
    turn: of each seed all run one after another, on a machine that drifts."""
    found: dict[str, list[Measured]] = {name: [] for name in chosen}
    made: dict[str, list[Run]] = {name: [] for name in chosen}
    blocks = BLOCKS[pressure]
    async with Fleet(place, blocks, ours=True) as ours, Fleet(place, blocks, ours=False) as stock:
        for seed in seeds:
            for name, entrant in chosen.items():
                run = Run(ours if entrant.ours else stock, entrant, seed)
                one = await run.measure(effort)
                found[name].append(one)
                made[name].append(run)
                print(
                    f"  ρ≈{pressure} seed {seed} {name:14}"
                    f"{one.trained_tokens_per_hour / 1e3:8.1f} k/h  ρ {one.pressure:4.1f}  "
                    f"hit {one.hit_rate:4.2f}  prefill {one.prefilled_per_trained:5.2f}  "
                    f"cpu {one.engine_cpu_s:5.1f}",
                    file=sys.stderr,
                )
    return found, made


def agreement(made: dict[str, list[Run]], pressure: str) -> dict[str, Any] | None:
    """Of the simulator, fitted on the first seed, with the runs of the others."""
    tested_on = {name: rows[1:] for name, rows in made.items()}
    if not all(tested_on.values()):
        return None
    return validate([made[name][0] for name in FITTED], tested_on, BLOCKS[pressure])


def block(found: dict[str, list[Measured]], settings: dict[str, float]) -> dict[str, Any]:
    """The rows for one pressure, with ratios of ours to each."""
    speed = {name: [m.trained_tokens_per_hour for m in rows] for name, rows in found.items()}
    rivals = [name for name in speed if name != "venus"]
    policies: dict[str, Any] = {}
    for name, rows in found.items():
        names = Measured.__slots__
        means = {key: round(float(np.mean([getattr(m, key) for m in rows])), 4) for key in names}
        ratio = paired_ratio(speed["venus"], speed[name])
        times = {key: value if np.isfinite(value) else None for key, value in asdict(ratio).items()}
        one_seed = len(rows) < 2
        policies[name] = {
            **means,
            "by_seed": speed[name],
            "venus_times": times | ({"low": None, "high": None} if one_seed else {}),
            "setting": settings.get(name),
        }
    best = max(rivals, key=lambda name: float(np.mean(speed[name])))
    return {"best_baseline": best, "policies": policies}


async def tune(place: Path, pressures: Sequence[str]) -> dict[str, Any]:
    """The settings by pressure. All engines are alike but for their memory."""
    async with Fleet(place, BLOCKS["5"], ours=False) as fleet:
        fitted = await calibrate(fleet, entrants)
    found = {pressure: best_settings(fitted, pressure, entrants) for pressure in pressures}
    swept = {"date": date.today().isoformat(), "host": host_facts(), "constants": asdict(fitted)}
    return found | {"swept": swept}


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="One seed and fewer steps: no intervals.")
@click.option("--tune", "tuning", is_flag=True, help="Sweep the baselines and write the settings.")
@click.option("--pressure", "chosen", type=click.Choice(sorted(BLOCKS)), multiple=True)
@click.option("--steps", type=int, help="Steps that are measured.")
def main(quick: bool, tuning: bool, chosen: tuple[str, ...], steps: int | None) -> None:
    begun = time.monotonic()
    effort = Effort(seeds=(1,), measured=2) if quick else Effort()
    effort = replace(effort, measured=steps or effort.measured)
    known = json.loads(SETTINGS.read_text())
    blocks: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rollout-real-") as name:
        place = Path(name)
        parameters = save_model(place / "model", VOCABULARY, MODEL_TOKENS)
        if tuning:
            known |= asyncio.run(tune(place, chosen or ("5", "1")))
            SETTINGS.write_text(json.dumps(known, indent=2) + "\n")
        for pressure in () if tuning else chosen or ("5", "1"):
            settings = known[pressure]["best"]
            found, made = asyncio.run(
                runs(place, pressure, entrants(settings), effort.seeds, effort)
            )
            blocks[pressure] = block(found, settings)
            blocks[pressure]["simulator"] = agreement(made, pressure)
    main_block = blocks.get("5")

    def lower(rival: str | None) -> float | None:
        if main_block is None or rival is None:
            return None
        found: float | None = main_block["policies"][rival]["venus_times"]["low"]
        return found

    result = {
        "bench": "rollout_real",
        "speedup_vs_sync_fcfs": lower("sync_fcfs"),
        "speedup_vs_best_baseline": lower(main_block and main_block["best_baseline"]),
        "policies": blocks,
        "parameters": parameters,
        "effort": asdict(effort),
        "wall_s": round(time.monotonic() - begun, 1),
        "host": host_facts(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
