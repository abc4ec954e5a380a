"""What a run is worth: trained tokens per hour in steady state, and what explains it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import Floats
from venusrl.simulate.cluster import Cluster
from venusrl.simulate.workload import Workload, draw_group

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
DECILE_SEED = 2**32 - 1
DECILE_GROUPS = 400


@dataclass(frozen=True, slots=True)
class Measured:
    trained_tokens_per_hour: float
    step_s: float
    pressure: float  # context of all that is under way over the GPUs' capacity, at the steps
    hit_rate: float  # of the context of admitted turns
    prefilled_per_trained: float
    reloaded_per_trained: float
    preempted_per_step: float
    busy_share: float
    decoding: float  # requests per engine and step
    prefill_share: float  # of the engines' time: by which prefill made steps longer
    max_staleness: int
    trained_by_decile: list[float]  # shares; each 0.1 where lengths are as dispatched
    dropped_by_decile: list[int]


def measure(cluster: Cluster, warm_up: int) -> Measured:
    """Over the steps after the first `warm_up`."""
    scenario, steps = cluster.scenario, cluster.steps
    begin, rest = steps[warm_up - 1], steps[warm_up:]
    time_s = rest[-1].time_s - begin.time_s
    counted = {name: rest[-1].counts[name] - begin.counts[name] for name in begin.counts}
    lengths = np.concatenate([step.lengths for step in rest])
    tokens = int(lengths.sum())
    edges = decile_edges(scenario.workload, scenario.group_size)
    dropped = [
        draw_group(scenario.workload, cluster.seed, order, scenario.group_size).generated_tokens
        for step in rest
        for order in step.dropped
    ]
    capacity = scenario.engines * scenario.model.kv_capacity
    return Measured(
        trained_tokens_per_hour=3600 * tokens / time_s,
        step_s=time_s / len(rest),
        pressure=float(np.mean([step.context_tokens for step in rest])) / capacity,
        hit_rate=counted["hit"] / max(1, counted["asked"]),
        prefilled_per_trained=counted["prefilled"] / tokens,
        reloaded_per_trained=counted["reloaded"] / tokens,
        preempted_per_step=counted["preempted"] / len(rest),
        busy_share=counted["busy_s"] / (scenario.engines * time_s),
        decoding=counted["decoded"] / max(1, counted["steps"]),
        prefill_share=counted["prefill_s"] / (scenario.engines * time_s),
        max_staleness=max(step.staleness for step in rest),
        trained_by_decile=[round(s, 4) for s in by_decile(lengths, edges) / len(lengths)],
        dropped_by_decile=by_decile(np.concatenate([*dropped, lengths[:0]]), edges).tolist(),
    )


@functools.cache
def decile_edges(workload: Workload, group_size: int) -> Floats:
    """Of the lengths that the workload draws, whoever runs it."""
    drawn = [
        draw_group(workload, DECILE_SEED, index, group_size).generated_tokens
        for index in range(DECILE_GROUPS)
    ]
    return np.asarray(np.quantile(np.concatenate(drawn), np.arange(1, 10) / 10))


def by_decile(lengths: np.ndarray, edges: Floats) -> np.ndarray:
    return np.bincount(np.searchsorted(edges, lengths), minlength=10)


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Mean with its 95 % interval; infinite ends for one value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    quantile = T_95[min(len(values) - 2, len(T_95) - 1)]
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Geometric mean of the ratios of runs of the same seed, with its 95 % interval."""
    logs = interval([math.log(a / b) for a, b in zip(ours, theirs, strict=True)])
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high))
