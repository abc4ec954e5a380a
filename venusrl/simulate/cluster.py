"""The whole cluster: engines, trainer and the policy under test.

The trainer takes a step as soon as `select_batch` gives it one. Training and publishing take no
time of their own: they run on other GPUs and are the same for all policies. (A synchronous run
would have to add them to its steps, an asynchronous one hides them, so leaving them out favours
the synchronous baselines.) Cached blocks survive a change of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from venusrl.schedule.snapshot import (
    Costs,
    Groups,
    Ints,
    Phase,
    Policy,
    Snapshot,
    Trajectories,
    Workers,
)
from venusrl.schedule.staleness import Batch, require_feasible, select_batch
from venusrl.simulate.engines import STOCK, RowPhase, Rules, new_engines
from venusrl.simulate.foresight import Foresight
from venusrl.simulate.hardware import EngineModel
from venusrl.simulate.workload import GroupScript, Workload, draw_group

PHASES = np.empty(len(RowPhase), np.int64)
PHASES[[RowPhase.EMPTY, RowPhase.WAITING]] = Phase.WAITING
PHASES[[RowPhase.LOADING, RowPhase.PREFILL, RowPhase.DECODE]] = Phase.RUNNING
PHASES[RowPhase.TOOL] = Phase.TOOL
PHASES[RowPhase.DONE] = Phase.DONE
EMPTY = -1


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cell of a table, but for the policy."""

    model: EngineModel
    workload: Workload
    batch: int  # groups per step
    async_factor: float = 1.5
    group_size: int = 8
    engines: int = 8
    max_staleness: int = 4

    @property
    def in_flight(self) -> int:
        return round(self.async_factor * self.batch)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with what it needs around it."""

    name: str
    decide: Policy
    rules: Rules = STOCK
    interval_s: float = 60.0  # how often it decides, beside at every completion
    foresight: Callable[[], Foresight] | None = None  # made for each run; None: predicts nothing


@dataclass(frozen=True, slots=True)
class Step:
    """One training step, as it happened."""

    time_s: float
    groups: list[int]  # by order of dispatch
    lengths: Ints  # tokens that each trained trajectory generated
    staleness: int  # the largest
    counts: dict[str, float]  # of all engines until then
    context_tokens: int  # of all trajectories that are under way and not complete
    dropped: list[int]

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


class Cluster:
    """One run. `drop`: groups at the staleness bound are dropped rather than waited for."""

    def __init__(
        self, scenario: Scenario, contender: Contender, seed: int, *, drop: bool = False
    ) -> None:
        require_feasible(scenario.batch, scenario.in_flight, scenario.max_staleness)
        self.scenario, self.contender, self.seed, self.drop = scenario, contender, seed, drop
        groups = scenario.in_flight
        self.engines = new_engines(
            scenario.model,
            contender.rules,
            engines=scenario.engines,
            rows=groups * scenario.group_size,
            groups=groups,
        )
        self.foresight = contender.foresight and contender.foresight()
        self.version = 0
        self.dispatched = 0
        self.steps: list[Step] = []
        self.order = np.full(groups, EMPTY)
        self.group_version = np.zeros(groups, np.int64)
        self.scripts: dict[int, GroupScript] = {}
        ones = np.ones(scenario.engines, np.int64)
        self.workers = Workers(
            kv_capacity=ones * scenario.model.kv_capacity,
            host_capacity=ones * scenario.model.host_capacity,
            slots=ones * scenario.model.max_running,
            block_tokens=scenario.model.block_tokens,
        )
        # What a policy is told: the engine's own constants, for a context of an eighth of the most.
        model, depth = scenario.model, scenario.workload.max_tokens / 8
        self.costs = Costs(model.compute_s + depth * model.attend_s, model.reload_s)

    def run(self, steps: int) -> list[Step]:
        self.dispatch()
        while len(self.steps) < steps:
            self.decide()
            self.engines.advance(self.engines.now + self.contender.interval_s)
            while len(self.steps) < steps and self.train():
                pass
        return self.steps

    # --- groups -----------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Fills every empty place with the next group."""
        for place in np.flatnonzero(self.order == EMPTY).tolist():
            self.start(place, self.dispatched)
            self.dispatched += 1

    def start(self, place: int, order: int) -> None:
        scenario = self.scenario
        script = draw_group(scenario.workload, self.seed, order, scenario.group_size)
        self.scripts[place] = script
        self.order[place] = order
        self.group_version[place] = self.version
        for member, row in enumerate(self.rows(place)):
            turns = script.turns[member]
            self.engines.start(
                row,
                place,
                scenario.workload.prompt_tokens,
                script.generated[member, :turns],
                script.observed[member, :turns],
                script.tool_s[member, :turns],
            )

    def rows(self, place: int) -> range:
        size = self.scenario.group_size
        return range(place * size, (place + 1) * size)

    def retire(self, place: int) -> None:
        for row in self.rows(place):
            self.engines.retire(row)
        self.order[place] = EMPTY

    def train(self) -> bool:
        """Takes one step if there is one to take."""
        batch = self.next_batch()
        if batch is None:
            return False
        self.record(batch)
        if self.foresight:
            for place in batch.trained.tolist():
                self.foresight.finish(self.scripts[place])
        for place in (*batch.trained.tolist(), *batch.dropped.tolist()):
            self.retire(place)
        self.version += 1
        self.dispatch()
        return True

    def next_batch(self) -> Batch | None:
        live = np.flatnonzero(self.order != EMPTY)
        batch = select_batch(
            self.group_version[live],
            self.order[live],
            self.complete()[live],
            step=self.version,
            batch=self.scenario.batch,
            max_staleness=self.scenario.max_staleness,
            drop=self.drop,
        )
        return batch and Batch(trained=live[batch.trained], dropped=live[batch.dropped])

    def complete(self) -> np.ndarray:
        phases = self.engines.phase.reshape(-1, self.scenario.group_size)
        return np.asarray(np.all(phases == RowPhase.DONE, axis=1))

    def record(self, batch: Batch) -> None:
        phase = self.engines.phase
        under_way = (phase != RowPhase.DONE) & (phase != RowPhase.EMPTY)
        self.steps.append(
            Step(
                time_s=self.engines.now,
                groups=self.order[batch.trained].tolist(),
                lengths=np.concatenate(
                    [self.scripts[place].generated_tokens for place in batch.trained.tolist()]
                ),
                staleness=int((self.version - self.group_version[batch.trained]).max()),
                counts=self.engines.counts(),
                context_tokens=int(self.engines.context[under_way].sum()),
                dropped=self.order[batch.dropped].tolist(),
            )
        )

    # --- the policy -------------------------------------------------------------------------

    def snapshot(self) -> tuple[Snapshot, Ints]:
        """What the policy sees, and the engines' row of each trajectory in it."""
        engines, size = self.engines, self.scenario.group_size
        live = np.flatnonzero(self.order != EMPTY)
        live = live[np.argsort(self.order[live])]
        rows = (live[:, None] * size + np.arange(size)).ravel()
        phase = PHASES[engines.phase[rows]]
        group = np.repeat(np.arange(len(live)), size)
        turns, context = engines.turn[rows], engines.context[rows]
        prompt = self.scenario.workload.prompt_tokens
        if self.foresight is None:
            left_tokens = left_turns = np.full(len(rows), np.nan)
        else:
            scripts = [self.scripts[place] for place in live.tolist()]
            left_turns, left_tokens = self.foresight.look(
                self.order[live], group, turns, context - prompt, phase == Phase.DONE, scripts
            )
        snapshot = Snapshot(
            version=self.version,
            batch_groups=self.scenario.batch,
            max_staleness=self.scenario.max_staleness,
            trajectories=Trajectories(
                group=group,
                phase=phase,
                worker=engines.worker[rows],
                admitted=engines.admitted[rows].astype(bool),
                turns=turns,
                context_tokens=context,
                kv_tokens=engines.kv[rows],
                host_tokens=engines.host[rows],
                arrival=engines.arrival[rows],
                tool_s=np.where(phase == Phase.TOOL, engines.now - engines.since[rows], 0.0),
                moved_turn=engines.moved_turn[rows],
                remaining_tokens=left_tokens,
                remaining_turns=left_turns,
            ),
            groups=Groups(
                order=self.order[live],
                version=self.group_version[live],
                prompt_tokens=np.full(len(live), prompt),
            ),
            workers=self.workers,
            costs=self.costs,
        )
        return snapshot, rows

    def decide(self) -> None:
        snapshot, rows = self.snapshot()
        decision = self.contender.decide(snapshot)
        self.engines.place(
            rows,
            decision.critical,
            decision.rank,
            decision.admitted,
            decision.level,
            decision.worker,
        )
