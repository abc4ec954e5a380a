"""Bounds how many lines each place in the code may log: who provokes an event again and again fills
no disk with it. Pure, but for the clock that it is given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

LINES_PER_S = 20.0
BURST = 200.0


@dataclass
class _Bucket:
    """Lines that may still come, as of a moment; and those that did not."""

    tokens: float
    at_s: float
    suppressed: int = 0


class RateLimit(logging.Filter):
    """For a handler. The first line that comes again tells how many did not (`suppressed`).

    There are as many buckets as places in the code that log. Lines from `unlimited` loggers pass:
    they are bounded by what they tell of.
    """

    def __init__(self, clock: Callable[[], float], unlimited: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._clock = clock
        self._unlimited = unlimited
        self._buckets: dict[tuple[str, int], _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line may be written."""
        if record.name in self._unlimited:
            return True
        now = self._clock()
        place = record.pathname, record.lineno
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = _Bucket(BURST, now)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at_s) * LINES_PER_S)
        bucket.at_s = now
        if bucket.tokens < 1:
            bucket.suppressed += 1
            return False
        bucket.tokens -= 1
        if bucket.suppressed:
            record.fields = {**getattr(record, "fields", {}), "suppressed": bucket.suppressed}
            bucket.suppressed = 0
        return True
