"""What trajectories do: turns, tokens and tool times, drawn from a seed.

Group `index` of a seed is the same whatever policy runs it and whenever it is dispatched: this is
what pairs the runs of a comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import Floats, Ints


@dataclass(frozen=True, slots=True)
class LogNormal:
    median: float
    sigma: float

    def of(self, normal: Floats) -> Floats:
        return np.asarray(self.median * np.exp(self.sigma * normal))


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    turns: LogNormal
    sibling_icc: float  # share of the variance of log turns that siblings have in common
    prompt_tokens: int
    generated: LogNormal  # tokens per turn
    observed: LogNormal  # tokens per turn
    tool_s: LogNormal
    max_turns: int
    max_tokens: int


HEAVY = Workload(
    name="heavy",
    turns=LogNormal(30, 0.9),
    sibling_icc=0.6,
    prompt_tokens=4000,
    generated=LogNormal(180, 0.8),
    observed=LogNormal(350, 1.2),
    tool_s=LogNormal(1.0, 1.2),
    max_turns=300,
    max_tokens=128 * 1024,
)
# tau-bench, airline, as published for GPT-4o: median 11 turns with σ 0.51 of the logarithm (a mixed
# model gives siblings 0.5 of it), 48 tokens per action with σ 0.72, 30 per answer with σ 1.5, and a
# system prompt of 1,539. It publishes no tool times.
LIGHT = Workload(
    name="light",
    turns=LogNormal(11, 0.51),
    sibling_icc=0.5,
    prompt_tokens=1539,
    generated=LogNormal(48, 0.72),
    observed=LogNormal(30, 1.5),
    tool_s=LogNormal(1.0, 1.2),
    max_turns=60,
    max_tokens=32 * 1024,
)
WORKLOADS = {workload.name: workload for workload in (HEAVY, LIGHT)}


@dataclass(frozen=True, slots=True)
class GroupScript:
    """What the trajectories of one group will do. Rows: trajectories; columns: turns."""

    turns: Ints
    generated: Ints
    observed: Ints
    tool_s: Floats

    # Of each trajectory in all.
    generated_tokens: Ints
    grown_tokens: Ints  # by which the context exceeds the prompt in the end

    def grown(self) -> list[Ints]:
        """Of each trajectory, the tokens that its first k + 1 turns added to the context."""
        added = (self.generated + self.observed).cumsum(axis=1)
        found = []
        for turns, row, total in zip(self.turns, added, self.grown_tokens, strict=True):
            found.append(row[:turns].copy())
            found[-1][-1] = total
        return found


def draw_group(workload: Workload, seed: int, index: int, size: int) -> GroupScript:
    random = np.random.default_rng([seed, index])
    shared = math.sqrt(workload.sibling_icc) * random.standard_normal()
    own = math.sqrt(1 - workload.sibling_icc) * random.standard_normal(size)
    turns = np.clip(np.rint(workload.turns.of(shared + own)), 1, workload.max_turns)
    shape = (size, workload.max_turns)
    generated = np.maximum(1, np.rint(workload.generated.of(random.standard_normal(shape))))
    observed = np.maximum(1, np.rint(workload.observed.of(random.standard_normal(shape))))
    # The last turn of a context that would grow too long is the last that fits whole.
    length = workload.prompt_tokens + np.cumsum(generated + observed, axis=1)
    fitting = np.maximum(1, (length <= workload.max_tokens).sum(axis=1))
    turns = np.minimum(turns, fitting).astype(np.int64)
    taken = np.arange(workload.max_turns) < turns[:, None]
    generated_tokens = (generated * taken).sum(axis=1).astype(np.int64)
    # What the last tool answers is never read.
    read = np.arange(workload.max_turns) < turns[:, None] - 1
    return GroupScript(
        turns=turns,
        generated=generated.astype(np.int64),
        observed=observed.astype(np.int64),
        tool_s=workload.tool_s.of(random.standard_normal(shape)),
        generated_tokens=generated_tokens,
        grown_tokens=generated_tokens + (observed * read).sum(axis=1).astype(np.int64),
    )
