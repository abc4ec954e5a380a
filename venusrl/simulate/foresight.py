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
        order: Ints,
        group: Ints,
        turns: Ints,
        tokens: Ints,
        done: Bools,
        scripts: Sequence[GroupScript],
    ) -> tuple[Floats, Floats]:
        """Turns and tokens that each trajectory has left. `order` names the groups, ascending; all
        have as many trajectories. Only an oracle reads the scripts."""


class Predicted:
    """Every task is new: the workloads have no epochs. What was said of a group stands until one of
    its turns ends, or the predictor has learned: most groups wait, and nothing of them changes."""

    def __init__(self) -> None:
        self.predictor = LengthPredictor()
        self.forget()

    def forget(self) -> None:
        self.order = np.zeros(0, np.int64)
        self.seen = np.zeros((0, 1), np.int64)  # [group, sibling]: turns, and whether it is done
        self.said = np.zeros((2, 0, 1))  # [turns or tokens, group, sibling]

    def finish(self, script: GroupScript) -> None:
        self.predictor.finish(-1, script.grown())
        self.forget()

    def look(
        self,
        order: Ints,
        group: Ints,
        turns: Ints,
        tokens: Ints,
        done: Bools,
        scripts: Sequence[GroupScript],
    ) -> tuple[Floats, Floats]:
        seen = (2 * turns + done).reshape(len(order), -1)
        said = np.empty((2, *seen.shape))
        at = np.searchsorted(self.order, order)
        known = np.isin(order, self.order)
        known[known] = (self.seen[at[known]] == seen[known]).all(axis=1)
        said[:, known] = self.said[:, at[known]]
        new = ~known[group]
        if new.any():
            number = np.cumsum(~known) - 1
            found = self.predictor.predict(
                Progress(
                    number[group[new]],
                    turns[new],
                    tokens[new],
                    done[new],
                    np.full(number[-1] + 1, -1),
                )
            )
            said[:, ~known] = np.stack((found.turns, found.tokens)).reshape(2, -1, seen.shape[1])
        self.order, self.seen, self.said = order, seen, said
        return said[0].ravel(), said[1].ravel()


class Oracle:
    def finish(self, script: GroupScript) -> None:
        pass

    def look(
        self,
        order: Ints,
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
