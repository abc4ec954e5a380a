"""The engines of a simulated cluster: the compiled `native/simulate`, seen from Python."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from venusrl.simulate._engines import Engines
from venusrl.simulate.hardware import EngineModel


class RowPhase(IntEnum):
    """As in native/simulate/engines.h: finer than `schedule.Phase`."""

    EMPTY = 0
    WAITING = 1
    LOADING = 2
    PREFILL = 3
    DECODE = 4
    TOOL = 5
    DONE = 6


class Rules(NamedTuple):
    """How engines queue and evict; constant over a run."""

    by_rank: bool = False  # the queue is sorted by rank; otherwise by arrival, as stock vLLM does
    by_level: bool = False  # eviction goes by level; otherwise by last use, as stock vLLM does
    # A critical request may displace a running background one. Not where a host tier lets memory be
    # overbooked: turns wait there as a matter of course.
    displace: bool = False
    patience_s: float = 0.0  # with a host tier: so long those who fit pass one who does not
    prefill_tokens: int = 0  # of a step in which others decode; 0: all that `step_tokens` leaves
    # By level: by which each turn under way can still grow, when another is admitted.
    reserve_tokens: int = 128
    evict_tokens: int = 64  # by which each that decodes can grow once the cache has given way


STOCK = Rules()


def new_engines(
    model: EngineModel, rules: Rules, *, engines: int, rows: int, groups: int
) -> Engines:
    """Idle engines, with room for `rows` trajectories of `groups` groups between them."""
    return Engines(**model._asdict(), **rules._asdict(), engines=engines, rows=rows, groups=groups)
