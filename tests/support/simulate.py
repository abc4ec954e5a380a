"""Simulated engines by themselves: trajectories that a test writes down turn by turn."""

from __future__ import annotations

import math

import numpy as np

from venusrl.simulate.engines import STOCK, new_engines
from venusrl.simulate.hardware import EngineModel

PLAIN = EngineModel(
    overhead_s=0.001,
    weights_s=0.010,
    read_s=1e-6,
    compute_s=1e-4,
    attend_s=1e-9,
    reload_s=3e-6,
    writeback_s=3e-6,
    kv_capacity=100_000,
    host_capacity=0,
    step_tokens=2000,
    max_running=64,
)


def engines_of(model, rules=STOCK, *, engines=1, rows=8):
    return new_engines(model, rules, engines=engines, rows=rows, groups=rows)


def start(engines, row, prompt, turns, *, group=None):
    """A trajectory of (generated, observed, tool seconds) per turn."""
    generated, observed, tool_s = (np.asarray(column) for column in zip(*turns, strict=True))
    group = row if group is None else group
    engines.start(row, group, prompt, generated, observed, tool_s.astype(float))


def place(engines, rows, *, ranks=None, levels=None, critical=None, worker=0, admitted=None):
    n = len(rows)
    engines.place(
        np.asarray(rows),
        np.zeros(n, bool) if critical is None else np.asarray(critical),
        np.arange(n) if ranks is None else np.asarray(ranks),
        np.ones(n, bool) if admitted is None else np.asarray(admitted),
        np.ones(n, int) if levels is None else np.asarray(levels),
        np.full(n, worker),
    )


def run_out(engines, completions):
    done = 0
    while done < completions:
        found = engines.advance(math.inf)
        assert found > 0, "the engines stand still"
        done += found
    return engines.now
