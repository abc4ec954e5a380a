"""A histogram of latencies, cheap enough for the hottest path. Pure.

One observation is a search among a few bounds and two additions. No lock: observed and read on the
event loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Close together where the daemon's operations lie, up to the longest that a create may wait."""


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self._bounds = tuple(bounds)
        # One more than there are bounds: what is above all of them.
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one. A bound belongs to its own bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Of all observations."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Each upper bound, at last infinity, and how many observations are not above it."""
        return zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True)
