"""Who is compared, and which settings each may choose from.

A baseline is run at its own best settings: `Field` names what is swept, and `tune` (in `sweep`)
climbs until the best lies inside. Values of a field are steps of a ladder, not a fixed list, so
that a best at the end makes the ladder longer instead of ending the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from venusrl.schedule.baselines import (
    Fcfs,
    LongestFirst,
    OldestFirst,
    ProgramPause,
    ShortestFirst,
)
from venusrl.schedule.packing import Packing
from venusrl.schedule.priority import Priority
from venusrl.simulate.cluster import Cluster, Contender, Scenario
from venusrl.simulate.engines import Rules
from venusrl.simulate.foresight import Foresight, Oracle, Predicted
from venusrl.simulate.tail_batching import TailBatching

# An H100 computes some 230 tokens while it reads the weights of a model: prefill costs those who
# decode nothing while it stays below.
PREFILL_TOKENS = 256
OURS = Rules(
    by_rank=True, by_level=True, displace=True, patience_s=10.0, prefill_tokens=PREFILL_TOKENS
)
PAUSE_INTERVAL_S = 5.0  # ThunderAgent's default
OUR_INTERVAL_S = 5.0
# Those that rank by prediction refresh it this often, beside at every completion.
RANK_INTERVAL_S = 30.0

Settings = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ladder:
    """The values that a setting may take: by rung, from `first` on; `lowest` is a natural end."""

    first: float
    ratio: float = 1.0
    step: float = 0.0
    lowest: float = 0.0
    highest: float = float("inf")

    def neighbours(self, value: float) -> list[float]:
        """One rung down and one up, where there is one."""
        if self.step:
            found = [value - self.step, value + self.step]
        else:
            found = [value / self.ratio, value * self.ratio]
        return [round(v, 4) for v in found if self.lowest <= v <= self.highest]


CAP = Ladder(first=48, ratio=1.25, lowest=4)
ASYNC_FACTOR = Ladder(first=1.5, step=0.25, lowest=1.0, highest=4.0)
PREFILL = Ladder(first=512, ratio=2, lowest=64, highest=8192)


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row of the table. `make` takes the settings; `async_factor` among them is the
    scenario's."""

    name: str
    make: Callable[[Settings], Contender]
    ladders: Mapping[str, Ladder] = field(default_factory=dict)
    fixed_factor: float | None = None  # a policy that is synchronous by nature
    cluster: type[Cluster] = Cluster
    baseline: bool = True


def cap_of(settings: Settings) -> int:
    return round(settings["cap"])


def rules_of(settings: Settings, *, by_rank: bool = False) -> Rules:
    """Stock vLLM; how much of a step prefill may take is an option of it."""
    return Rules(by_rank=by_rank, prefill_tokens=round(settings.get("prefill_tokens", 0)))


def ours(
    name: str,
    policy: Priority,
    rules: Rules = OURS,
    foresight: Callable[[], Foresight] | None = None,
) -> Entrant:
    contender = Contender(name, policy, rules, OUR_INTERVAL_S, foresight)
    return Entrant(name, lambda _: contender, baseline=False)


BASELINES = (
    Entrant("sync_fcfs", lambda _: Contender("sync_fcfs", Fcfs()), fixed_factor=1.0),
    # At the f of the block, as ours: where nothing is scarce, more in flight is all that helps.
    Entrant("untuned_fcfs", lambda _: Contender("untuned_fcfs", Fcfs())),
    Entrant(
        "async_fcfs",
        lambda _: Contender("async_fcfs", Fcfs()),
        {"async_factor": ASYNC_FACTOR},
    ),
    Entrant(
        "capped_fcfs",
        lambda s: Contender("capped_fcfs", Fcfs(cap_of(s)), rules_of(s)),
        {"cap": CAP, "prefill_tokens": PREFILL, "async_factor": ASYNC_FACTOR},
    ),
    Entrant(
        "oldest_first",
        lambda s: Contender("oldest_first", OldestFirst(cap_of(s)), rules_of(s, by_rank=True)),
        {"cap": CAP, "prefill_tokens": PREFILL, "async_factor": ASYNC_FACTOR},
    ),
    Entrant(
        "longest_first",
        lambda s: Contender(
            "longest_first",
            LongestFirst(cap_of(s)),
            rules_of(s, by_rank=True),
            RANK_INTERVAL_S,
            Predicted,
        ),
        {"cap": CAP, "prefill_tokens": PREFILL, "async_factor": ASYNC_FACTOR},
    ),
    Entrant(
        "shortest_first",
        lambda s: Contender(
            "shortest_first",
            ShortestFirst(cap_of(s)),
            rules_of(s, by_rank=True),
            RANK_INTERVAL_S,
            Predicted,
        ),
        {"cap": CAP, "prefill_tokens": PREFILL, "async_factor": ASYNC_FACTOR},
    ),
    Entrant(
        "tail_batching",
        lambda s: Contender("tail_batching", Fcfs(cap_of(s)), rules_of(s)),
        {"cap": CAP, "prefill_tokens": PREFILL},
        fixed_factor=1.0,
        cluster=TailBatching,
    ),
    Entrant(
        "program_pause",
        lambda s: Contender(
            "program_pause",
            ProgramPause(memory_share=s["memory_share"]),
            rules_of(s),
            PAUSE_INTERVAL_S,
        ),
        {
            "memory_share": Ladder(first=1.0, step=0.1, lowest=0.1),
            "prefill_tokens": PREFILL,
            "async_factor": ASYNC_FACTOR,
        },
    ),
)


class Dropping(Cluster):
    """Groups at the staleness bound are dropped rather than waited for."""

    def __init__(self, scenario: Scenario, contender: Contender, seed: int) -> None:
        super().__init__(scenario, contender, seed, drop=True)


VENUS = ours("venus", Priority())
VENUS_DROPPING = replace(ours("venus_dropping", Priority()), cluster=Dropping)
ABLATION = (
    ours("venus_predicting", Priority(order="longest"), foresight=Predicted),
    ours("venus_oracle", Priority(order="longest"), foresight=Oracle),
    ours("without_levels", Priority(), rules=OURS._replace(by_level=False)),
    ours("without_prefill_budget", Priority(), rules=OURS._replace(prefill_tokens=0)),
    ours("without_displacement", Priority(), rules=OURS._replace(displace=False)),
    ours("without_passing", Priority(), rules=OURS._replace(patience_s=0.0)),
    ours("without_release", Priority(release=False)),
    ours("without_migration", Priority(migrate=False)),
    ours("without_siblings_together", Priority(packing=Packing(siblings_together=False))),
    ours("without_marks", Priority(packing=Packing(admit_mark=1.0), growth_tokens=0.0)),
)


def run(entrant: Entrant, scenario: Scenario, settings: Settings, seed: int, steps: int) -> Cluster:
    """The cluster after so many steps."""
    factor = entrant.fixed_factor or settings.get("async_factor", scenario.async_factor)
    at = replace(scenario, async_factor=factor)
    cluster = entrant.cluster(at, entrant.make(settings), seed)
    cluster.run(steps)
    return cluster
