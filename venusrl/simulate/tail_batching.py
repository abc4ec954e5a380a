"""RollPacker's tail batching: synchronous rounds that never wait for their longest groups.

A short round dispatches 1.25 times as many groups as a step takes and trains the first that are
complete. The rest are aborted and put off; once there are enough for a step, a long round runs
just them, from the beginning, and waits for all. So nothing is dropped, the weights are always the
newest, and what the aborted groups had done is lost.

The source also samples more responses per prompt than it trains. That trains the shorter ones,
which this comparison, without drops, leaves out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from venusrl.schedule.staleness import Batch
from venusrl.simulate.cluster import EMPTY, Cluster, Contender, Scenario

OVERSAMPLING = 1.25


class TailBatching(Cluster):
    """`scenario.async_factor` is not used: a round is dispatched when the one before is trained."""

    def __init__(self, scenario: Scenario, contender: Contender, seed: int) -> None:
        self.put_off: list[int] = []
        in_flight = math.ceil(OVERSAMPLING * scenario.batch)
        rounds = replace(scenario, async_factor=in_flight / scenario.batch)
        super().__init__(rounds, contender, seed)

    def dispatch(self) -> None:
        batch = self.scenario.batch
        if len(self.put_off) >= batch:
            for place in range(batch):
                self.start(place, self.put_off.pop(0))
        else:
            super().dispatch()

    def next_batch(self) -> Batch | None:
        complete = np.flatnonzero(self.complete() & (self.order != EMPTY))
        if len(complete) < self.scenario.batch:
            return None
        trained = complete[: self.scenario.batch]
        others = np.flatnonzero(self.order != EMPTY)
        others = others[~np.isin(others, trained)]
        self.put_off += self.order[others].tolist()
        for place in others.tolist():
            self.retire(place)
        return Batch(trained=trained, dropped=trained[:0])
