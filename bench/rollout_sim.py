"""Trained tokens per hour of every policy on a simulated cluster of H100s.

Around 32B, the heavy workload, f = 1.5, no host tier, 8 engines, 8 samples per group, nothing
dropped, one factor is varied at a time. Every baseline runs at its own best settings, found on
another seed. Ratios are paired by seed; intervals are 95 %. docs/scheduling.md says what to make of
it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import click
import numpy as np

from bench.common import host_facts
from bench.decision import decision_ms
from venusrl.simulate.bound import tokens_per_hour_bound
from venusrl.simulate.cluster import Scenario
from venusrl.simulate.contenders import (
    ABLATION,
    BASELINES,
    VENUS,
    VENUS_DROPPING,
    Entrant,
    run,
)
from venusrl.simulate.hardware import SENSITIVE, SHAPES, engine_model, scaled
from venusrl.simulate.measure import Measured, measure, paired_ratio
from venusrl.simulate.sweep import Tuned, tune
from venusrl.simulate.workload import WORKLOADS

T = TypeVar("T")
TUNING_SEED = 1_000_003
INFINITE_KV = 10**9  # tokens


@dataclass(frozen=True, slots=True)
class Cell:
    """One block of the table."""

    name: str
    batch: int = 32
    async_factor: float = 1.5
    host: float = 0.0  # times what the GPUs hold
    model: str = "32B"
    workload: str = "heavy"
    constant: str = ""  # scaled by `factor`
    factor: float = 1.0
    infinite: bool = False
    max_staleness: int = 4

    def scenario(self) -> Scenario:
        model = engine_model(SHAPES[self.model], self.host)
        if self.constant:
            model = scaled(model, self.constant, self.factor)
        if self.infinite:
            model = model._replace(kv_capacity=INFINITE_KV)
        return Scenario(
            model,
            WORKLOADS[self.workload],
            self.batch,
            self.async_factor,
            max_staleness=self.max_staleness,
        )


MAIN = Cell("B=64", batch=64)
CELLS = (
    MAIN,
    Cell("B=32"),
    Cell("B=16", batch=16),
    Cell("B=32 f=1", async_factor=1.0),
    Cell("B=32 f=2", async_factor=2.0),
    Cell("B=32 host=2", host=2.0),
    Cell("B=32 host=5", host=5.0),
    Cell("B=32 4B", model="4B"),
    Cell("B=32 light", workload="light"),
)
ABLATED = Cell("B=32")
INFINITE = Cell("B=32 infinite", infinite=True)
# Nothing is dropped unless the bound is tight.
DROPPING = Cell("B=32 f=2 bound=1", async_factor=2.0, max_staleness=1)
SENSITIVITY = tuple(
    Cell(f"B=32 {constant} x{factor}", constant=constant, factor=factor)
    for constant in SENSITIVE
    for factor in (0.5, 1.5)
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is run. Steps: of the warm-up, then measured; per tried setting of a sweep, in
    all."""

    seeds: int = 5
    warm_up: int = 3
    measured: int = 8
    swept: int = 6

    def for_batch(self, batch: int) -> Effort:
        """Small batches take more steps: what is trained in a few of them is mostly chance."""
        times = max(1, 32 // batch)
        return replace(
            self,
            warm_up=self.warm_up * times,
            measured=self.measured * times,
            swept=self.swept * times,
        )


@dataclass(frozen=True, slots=True)
class Job:
    cell: Cell
    entrant: str
    settings: tuple[tuple[str, float], ...]
    seed: int
    effort: Effort


ENTRANTS = {entrant.name: entrant for entrant in (*BASELINES, VENUS, VENUS_DROPPING, *ABLATION)}


def do_run(job: Job) -> Measured:
    effort = job.effort.for_batch(job.cell.batch)
    steps = effort.warm_up + effort.measured
    settings = dict(job.settings)
    cluster = run(ENTRANTS[job.entrant], job.cell.scenario(), settings, job.seed, steps)
    return measure(cluster, effort.warm_up)


def do_tune(job: Job) -> Tuned:
    """The best settings of a baseline in a cell; where f is varied, f is the cell's."""
    entrant, effort = ENTRANTS[job.entrant], job.effort.for_batch(job.cell.batch)
    ladders = dict(entrant.ladders)
    if job.cell.async_factor != MAIN.async_factor:
        ladders.pop("async_factor", None)

    def value(settings: dict[str, float]) -> float:
        cluster = run(entrant, job.cell.scenario(), settings, TUNING_SEED, effort.swept)
        return measure(cluster, effort.swept // 3).trained_tokens_per_hour

    return tune(ladders, value)


def entrants_of(cell: Cell, with_ablation: bool) -> list[Entrant]:
    if cell == DROPPING:
        return [VENUS, VENUS_DROPPING]
    if cell in SENSITIVITY or cell == INFINITE:
        names = {"sync_fcfs", "program_pause", "venus"} if cell != INFINITE else {"venus"}
        return [entrant for entrant in (*BASELINES, VENUS) if entrant.name in names]
    return [*BASELINES, VENUS, *(ABLATION if with_ablation and cell == ABLATED else ())]


def table(cells: list[Cell], effort: Effort, jobs: int, with_ablation: bool) -> dict[str, object]:
    """All cells; two rounds of independent jobs: sweeps, then measurements."""
    pairs = [(c, entrant) for c in cells for entrant in entrants_of(c, with_ablation)]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        tuning = [Job(c, e.name, (), TUNING_SEED, effort) for c, e in pairs if e.ladders]
        tuned = dict(zip(tuning, progress(pool.imap(do_tune, tuning), len(tuning), "sweeps"),
                         strict=True))  # fmt: skip
        best = {(job.cell, job.entrant): found for job, found in tuned.items()}
        runs = [
            Job(c, e.name, tuple(best[c, e.name].settings.items()) if e.ladders else (), s, effort)
            for c, e in pairs
            for s in range(effort.seeds)
        ]
        results = dict(zip(runs, progress(pool.imap(do_run, runs), len(runs), "runs"),
                           strict=True))  # fmt: skip
    blocks: dict[str, object] = {}
    for cell in cells:
        rows: dict[str, list[Measured]] = {}
        for job, measured in results.items():
            if job.cell == cell:
                rows.setdefault(job.entrant, []).append(measured)
        blocks[cell.name] = block(cell, rows, best)
    return blocks


def progress(found: Iterable[T], total: int, what: str) -> Iterator[T]:
    for number, one in enumerate(found, 1):
        if sys.stderr.isatty() or number == total:
            print(f"\r{what}: {number}/{total}", end="", file=sys.stderr)
        yield one
    print(file=sys.stderr)


def block(
    cell: Cell, rows: dict[str, list[Measured]], best: dict[tuple[Cell, str], Tuned]
) -> dict[str, object]:
    """The rows of a cell, with ratios of ours to each, and a table for people."""
    speed = {name: [m.trained_tokens_per_hour for m in found] for name, found in rows.items()}
    baselines = [entrant.name for entrant in BASELINES if entrant.name in speed]
    fastest = max(baselines, key=lambda name: float(np.mean(speed[name])), default=None)
    print(f"{cell.name}: million trained tokens per hour", file=sys.stderr)
    policies: dict[str, object] = {}
    for name in sorted(speed, key=lambda name: -float(np.mean(speed[name]))):
        ratio = paired_ratio(speed["venus"], speed[name])
        tuned = best.get((cell, name))
        mean = {key: mean_of([getattr(m, key) for m in rows[name]]) for key in Measured.__slots__}
        policies[name] = {
            **mean,
            "by_seed": speed[name],
            "venus_times": asdict(ratio),
            "settings": tuned and tuned.settings,
            "sweep": tuned and tuned.tried,
            "sweep_finished": tuned.finished if tuned else None,
        }
        print(
            f"  {name:26}{float(np.mean(speed[name])) / 1e6:8.2f}   venus x {ratio.mean:5.2f} "
            f"[{ratio.low:5.2f}, {ratio.high:5.2f}]  {tuned.settings if tuned else ''}",
            file=sys.stderr,
        )
    bound = tokens_per_hour_bound(cell.scenario())
    print(f"  {'bound of full memory':26}{bound / 1e6:8.2f}", file=sys.stderr)
    return {
        "cell": asdict(cell),
        "best_baseline": fastest,
        "bound_tokens_per_hour": round(bound),
        "policies": policies,
    }


def mean_of(values: list[object]) -> object:
    """Element by element for lists."""
    return np.round(np.mean(np.asarray(values, float), axis=0), 4).tolist()


def lower_end(blocks: dict[str, Any], cell: str, rival: str | None) -> float | None:
    """Of the interval of ours over a rival."""
    if cell not in blocks or rival is None:
        return None
    found: float = blocks[cell]["policies"][rival]["venus_times"]["low"]
    return round(found, 3)


def share_of(blocks: dict[str, Any], cell: str, other: str) -> float | None:
    """Ours in one block over ours in another."""
    if cell not in blocks or other not in blocks:
        return None
    mean: list[float] = [
        blocks[name]["policies"]["venus"]["trained_tokens_per_hour"] for name in (cell, other)
    ]
    return round(mean[0] / mean[1], 3)


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="B = 16, 32 and 64 only, and no ablation.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--seeds", default=5, show_default=True, help="Paired seeds of every row.")
@click.option("--cell", "names", multiple=True, help="Only these blocks, by name.")
def main(quick: bool, jobs: int, seeds: int, names: tuple[str, ...]) -> None:
    begun = time.monotonic()
    effort = Effort(seeds=seeds)
    cells = list(CELLS[:3] if quick else (*CELLS, INFINITE, DROPPING, *SENSITIVITY))
    if names:
        cells = [cell for cell in (*CELLS, INFINITE, DROPPING, *SENSITIVITY) if cell.name in names]
    if not cells:
        raise click.BadParameter(f"no such block; there are {[cell.name for cell in CELLS]}")
    blocks: dict[str, Any] = table(cells, effort, jobs, with_ablation=not quick)
    main_block = blocks.get(MAIN.name)
    result = {
        "bench": "rollout_sim",
        "speedup_vs_sync_fcfs": lower_end(blocks, MAIN.name, "sync_fcfs"),
        "speedup_vs_best_baseline": lower_end(
            blocks, MAIN.name, main_block and main_block["best_baseline"]
        ),
        "best_baseline": main_block and main_block["best_baseline"],
        "policies": blocks,
        "share_of_infinite_kv": share_of(blocks, ABLATED.name, INFINITE.name),
        "decision_ms": round(decision_ms(), 3),
        "effort": asdict(effort),
        "wall_s": round(time.monotonic() - begun, 1),
        "host": host_facts(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
