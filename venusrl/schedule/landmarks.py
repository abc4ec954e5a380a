"""What a trajectory's own progress says of what it has left, learned from those that are finished.

Whoever has added much to its context by some turn may be verbose, and have much left; or it may
have used up a budget, and have little left; or turns are independent, and it says nothing. Which
of these holds is a property of the workload, not of a model, so it is read off: at some turns, the
landmarks, the rank correlation of what was added until then with what was still to come. Ranks,
because a few trajectories that end right after a landmark would decide any other. A correlation
that chance may have made, or that few have shown, counts as none: its sign would be drawn by lot.
Siblings are alike, so chance is judged by groups.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from venusrl.schedule.snapshot import Floats, Ints

TURNS = np.asarray((1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226))
KEPT = 512  # trajectories of a landmark, the latest
LEAST = 8  # of fewer nothing is concluded
LEAST_FOR_SLOPE = 32
CHANCE = 1.0  # standard errors within which a correlation counts as none
CLEAR = 2.0  # beyond which it holds at later landmarks as well, where few show any


def ranked(values: Floats) -> Floats:
    """Ranks, the mean of them for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def spearman(a: Floats, b: Floats) -> float:
    """0 where either is constant: it orders nothing."""
    x, y = ranked(a), ranked(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """At each landmark: log tokens left = left + slope (log tokens added - added)."""

    added: Floats
    left: Floats
    slope: Floats
    z: Floats  # standard errors by which the correlation differs from none; 0 where the slope is


@dataclass
class Landmarks:
    groups: int = 0
    seen: list[deque[tuple[float, float, int]]] = field(  # log added, log left, number of the group
        default_factory=lambda: [deque(maxlen=KEPT) for _ in TURNS]
    )
    known: Fit | None = None  # until more is learned

    def learn(self, grown: Sequence[Ints]) -> None:
        """A group is finished; `grown[i][k]`: tokens that the first k + 1 turns of its trajectory
        i added."""
        self.known = None
        self.groups += 1
        for one in grown:
            for seen, turn in zip(self.seen, TURNS.tolist(), strict=True):
                if len(one) <= turn:
                    break
                added, left = np.log1p([one[turn - 1], one[-1] - one[turn - 1]]).tolist()
                seen.append((added, left, self.groups))

    def fit(self) -> Fit | None:
        """None while even the first landmark has seen too few. What a later one has seen too few
        for is that of the one before, then."""
        if self.known is None and len(self.seen[0]) >= LEAST:
            rows = [Row(0.0, 0.0, 0.0, 0.0)]
            for seen in self.seen:
                enough = len(seen) >= LEAST
                rows.append(fitted(np.asarray(seen).T, rows[-1]) if enough else rows[-1])
            self.known = Fit(*np.asarray(rows[1:]).T)
        return self.known


class Row(NamedTuple):
    """As `Fit`, at one landmark."""

    added: float
    left: float
    slope: float
    z: float


def fitted(seen: Floats, before: Row) -> Row:
    """From log added, log left and group of each that was seen, and the landmark before."""
    added, left, group = seen
    slope, z = 0.0, 0.0
    if len(added) < LEAST_FOR_SLOPE:
        if abs(before.z) > CLEAR:
            slope, z = before.slope, before.z
    else:
        x, y = ranked(added), ranked(left)
        shown = np.bincount(group.astype(np.int64) - int(group.min()),
                            (x - x.mean()) * (y - y.mean()))  # fmt: skip
        z = float(shown.sum()) / math.sqrt(max(1e-9, float(shown @ shown)))
        if abs(z) > CHANCE:
            slope = spearman(added, left) * float(left.std() / added.std())
        else:
            z = 0.0
    # The logarithm of the mean, not the mean of the logarithm.
    return Row(float(added.mean()), float(np.log(np.expm1(left).mean())), slope, z)


def landmark(turns: Ints) -> Ints:
    """The last one that is not beyond so many turns; the first for none."""
    return np.maximum(0, np.searchsorted(TURNS, turns, side="right") - 1)
