"""What is counted as it happens, beside `ServiceCounters`. Pure.

Labels come from closed sets, never from a client: so there are as many series at the end of a year
as at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxd.errors import ERROR_CLASSES, VenusError
from sandboxd.lifecycle import EndReason
from sandboxd.metrics.histogram import Histogram

HIT, EMPTY = "hit", "empty"
"""Whether a create or fork found all of its sandboxes launched ahead."""


def _by_pool() -> dict[str, Histogram]:
    return {HIT: Histogram(), EMPTY: Histogram()}


@dataclass(frozen=True)
class Instruments:
    """Of one daemon. Latencies are those of what succeeded; what failed is counted by its code."""

    create: Mapping[str, Histogram] = field(default_factory=_by_pool)
    """Of an image, from the request until it runs: by `HIT` or `EMPTY`."""
    fork: Mapping[str, Histogram] = field(default_factory=_by_pool)
    """Of a template, until all that were asked for run."""
    create_wait: Histogram = field(default_factory=Histogram)
    """What of `create` and `fork` is waiting for a turn."""
    exec_start: Histogram = field(default_factory=Histogram)
    """Until the program runs."""
    snapshot: Histogram = field(default_factory=Histogram)
    """Until the sandbox goes on and its pages are sealed; also for a fork of a live one."""
    destroy: Histogram = field(default_factory=Histogram)
    """Until nothing is left."""
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ERROR_CLASSES, 0))
    """Answered to clients, by code."""
    ends: dict[EndReason, int] = field(default_factory=lambda: dict.fromkeys(EndReason, 0))
    """Of sandboxes, by reason."""

    def note_error(self, error: VenusError) -> None:
        """A client is answered so."""
        self.errors[error.code] += 1
