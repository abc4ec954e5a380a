"""What a simulated run knows about lengths: what the predictor says, or, for an oracle, the
truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from venusrl.schedule.predictor import LengthPredictor, Progress
from venusrl.schedule.snapshot import Bools, Floats, Ints
from venusrl.simulate.workload import GroupScript


class Foresight(Protocol):
    def finish(self, script: GroupScript) -> None:
        """A group was trained: its lengths are past."""

    def look(
        self,
        group: Ints,
        turns: Ints,
        tokens: Ints,
        done: Bools,
        scripts: Sequence[GroupScript],
    ) -> tuple[Floats, Floats]:
        """Turns and tokens that each trajectory has left. Only an oracle reads the scripts."""


class Predicted:
    """Every task is new: the workloads have no epochs."""

    def __init__(self) -> None:
        self.predictor = LengthPredictor()

    def finish(self, script: GroupScript) -> None:
        self.predictor.finish(-1, script.turns, script.grown_tokens)

    def look(
        self,
        group: Ints,
        turns: Ints,
        tokens: Ints,
        done: Bools,
        scripts: Sequence[GroupScript],
    ) -> tuple[Floats, Floats]:
        task = np.full(len(scripts), -1)
        found = self.predictor.predict(Progress(group, turns, tokens, done, task))
        return found.turns, found.tokens


class Oracle:
    def finish(self, script: GroupScript) -> None:
        pass

    def look(
        self,
        group: Ints,
        turns: Ints,
        tokens: Ints,
        done: Bools,
        scripts: Sequence[GroupScript],
    ) -> tuple[Floats, Floats]:
        all_turns = np.concatenate([script.turns for script in scripts])
        all_tokens = np.concatenate([script.grown_tokens for script in scripts])
        left = np.maximum(0, all_tokens - tokens)
        return (all_turns - turns).astype(float), np.where(done, 0, left).astype(float)
