"""The constants of an engine, fitted to what its steps took.

The form is that of the simulator (native/simulate): a fixed overhead, linear layers that cost as
much as some tokens at least, attention over what decodes and over what prefills.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import Floats
from venusrl.simulate.hardware import EngineModel

# Columns of a step log: tokens that were decoded, context that they read, tokens that were
# prefilled, each of these times the tokens before it, then seconds: of the processor since the
# step before, of the processor in the step, on the wall in the step.
DECODED, READ, PREFILLED, ATTENDED, CPU_S, STEP_CPU_S, STEP_WALL_S = range(7)
# The linear layers take as long for one token as for so many, at most.
MOST_FLOOR_TOKENS = 32
# Steps that are off by so many times the median error are not of the engine's making.
OUTLIER = 6.0


@dataclass(frozen=True, slots=True)
class Fit:
    overhead_s: float
    floor_tokens: int
    compute_s: float
    read_s: float
    attend_s: float

    def seconds(self, steps: Floats) -> Floats:
        """Of the processor, for each step."""
        computed = steps[:, DECODED] + steps[:, PREFILLED]
        return np.asarray(
            self.overhead_s
            + self.compute_s * np.maximum(self.floor_tokens, computed)
            + self.read_s * steps[:, READ]
            + self.attend_s * steps[:, ATTENDED]
        )

    def errors(self, steps: Floats) -> Floats:
        """Relative, of each step."""
        taken = steps[:, CPU_S]
        return np.asarray(np.abs(self.seconds(steps) - taken) / taken)

    def model(
        self,
        *,
        kv_capacity: int,
        step_tokens: int,
        max_running: int,
        block_tokens: int,
        stretch: float = 1.0,
    ) -> EngineModel:
        """`stretch`: seconds on the wall for one of the processor."""
        return EngineModel(
            overhead_s=stretch * self.overhead_s,
            weights_s=stretch * self.compute_s * self.floor_tokens,
            read_s=stretch * self.read_s,
            compute_s=stretch * self.compute_s,
            attend_s=stretch * self.attend_s,
            reload_s=0.0,
            writeback_s=0.0,
            kv_capacity=kv_capacity,
            host_capacity=0,
            step_tokens=step_tokens,
            max_running=max_running,
            block_tokens=block_tokens,
        )


def fit(steps: Floats) -> Fit:
    """Least squares over the steps, then over those that are no outliers.

    Raises:
        ValueError: there are too few steps to tell the constants apart.
    """
    if len(steps) < 50:
        raise ValueError(f"fit an engine: {len(steps)} steps are too few")
    first = _least_squares(steps)
    errors = first.errors(steps)
    return _least_squares(steps[errors <= OUTLIER * np.median(errors)])


def _least_squares(steps: Floats) -> Fit:
    computed = steps[:, DECODED] + steps[:, PREFILLED]
    taken = steps[:, CPU_S]
    best, best_error = None, np.inf
    for floor in range(1, MOST_FLOOR_TOKENS + 1):
        columns = np.stack(
            (
                np.ones(len(steps)),
                np.maximum(floor, computed),
                steps[:, READ],
                steps[:, ATTENDED],
            ),
            axis=1,
        )
        # Relative errors count: a long step is not worth more than several short ones.
        weighted = columns / taken[:, None]
        found, *_ = np.linalg.lstsq(weighted, np.ones(len(steps)), rcond=None)
        found = np.maximum(found, 0.0)
        error = float(np.square(weighted @ found - 1.0).sum())
        if error < best_error:
            best_error = error
            best = Fit(float(found[0]), floor, *(float(value) for value in found[1:]))
    assert best is not None
    return best


def stretch(steps: Floats) -> float:
    """Seconds on the wall for one of the processor, within steps."""
    return float(steps[:, STEP_WALL_S].sum() / steps[:, STEP_CPU_S].sum())
