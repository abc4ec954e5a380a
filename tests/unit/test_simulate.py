"""The books of a simulated cluster, and what it is made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from tests.support.simulate import PLAIN  # noqa: E402
from venusrl.schedule.baselines import Fcfs, OldestFirst, ProgramPause  # noqa: E402
from venusrl.schedule.priority import Priority  # noqa: E402
from venusrl.schedule.snapshot import Phase  # noqa: E402
from venusrl.simulate.cluster import Cluster, Contender, Scenario  # noqa: E402
from venusrl.simulate.contenders import BASELINES, OURS, run  # noqa: E402
from venusrl.simulate.engines import Rules  # noqa: E402
from venusrl.simulate.hardware import QWEN_32B, engine_model, scaled  # noqa: E402
from venusrl.simulate.workload import HEAVY, LogNormal, Workload, draw_group  # noqa: E402

SMALL = Workload(
    name="small",
    turns=LogNormal(5, 0.5),
    sibling_icc=0.5,
    prompt_tokens=500,
    generated=LogNormal(40, 0.5),
    observed=LogNormal(80, 0.5),
    tool_s=LogNormal(1.0, 0.5),
    max_turns=20,
    max_tokens=8000,
)


class TestCluster:
    def scenario(self, **changes):
        fields = {"model": PLAIN._replace(kv_capacity=12_000), "workload": SMALL, "batch": 2,
                  "group_size": 3, "engines": 2}  # fmt: skip
        return Scenario(**(fields | changes))

    @pytest.mark.parametrize(
        "contender",
        [
            Contender("fcfs", Fcfs()),
            Contender("capped", Fcfs(cap=4)),
            Contender("oldest", OldestFirst(cap=6), Rules(by_rank=True)),
            Contender("pause", ProgramPause(), interval_s=5.0),
            Contender("ours", Priority(), OURS, interval_s=5.0),
        ],
        ids=lambda contender: contender.name,
    )
    @pytest.mark.parametrize("host", [0, 30_000])
    def test_every_group_is_trained_once_within_the_bound(self, contender, host):
        model = PLAIN._replace(kv_capacity=12_000, host_capacity=host)
        cluster = Cluster(self.scenario(model=model, max_staleness=2), contender, seed=5)
        steps = cluster.run(12)
        trained = [order for step in steps for order in step.groups]
        assert len(trained) == len(set(trained)) == 24
        assert max(step.staleness for step in steps) <= 2
        # All that was decoded was dispatched, and all that was trained was decoded.
        assert steps[-1].counts["decoded"] >= sum(step.tokens for step in steps)
        for (used, in_host), _ in zip(cluster.engines.memory(), range(2), strict=True):
            assert 0 <= used <= model.kv_capacity
            assert 0 <= in_host <= model.host_capacity

    def test_tail_batching_trains_what_it_put_off(self):
        entrant = next(e for e in BASELINES if e.name == "tail_batching")
        cluster = run(entrant, self.scenario(batch=4), {"cap": 12}, seed=2, steps=20)
        trained = [order for step in cluster.steps for order in step.groups]
        assert len(trained) == len(set(trained)) == 80
        assert cluster.steps[-1].staleness == 0
        # Aborted groups come again within a few rounds, none is lost.
        assert sorted(trained)[:60] == list(range(60))

    def test_dropping_is_counted(self):
        slow = self.scenario(max_staleness=1, async_factor=2.0)
        newest = Contender("oldest last", oldest_last, OURS, interval_s=1.0)
        kept = Cluster(slow, newest, seed=1).run(8)
        assert not any(step.dropped for step in kept)
        dropping = Cluster(slow, newest, seed=1, drop=True).run(8)
        assert any(step.dropped for step in dropping)

    def test_runs_of_a_seed_are_the_same(self):
        def times():
            contender = Contender("ours", Priority(), OURS, interval_s=5.0)
            return [step.time_s for step in Cluster(self.scenario(), contender, seed=5).run(4)]

        assert times() == times()


def oldest_last(snapshot):
    """The oldest group runs once all others are complete."""
    decision, rows = Priority()(snapshot), snapshot.trajectories
    oldest = rows.group == 0
    waits = oldest & np.any(~oldest & (rows.phase != Phase.DONE))
    return replace(decision, admitted=decision.admitted & ~waits)


class TestHardware:
    def test_recomputing_costs_what_is_published(self):
        model = engine_model(QWEN_32B)
        # 25,000 tokens: each on average over half of them.
        assert 70e-6 < model.compute_s + 12_500 * model.attend_s < 80e-6
        assert 2.5e-6 < model.reload_s < 3.5e-6

    def test_memory_is_what_weights_leave(self):
        model = engine_model(QWEN_32B, host_factor=2.0)
        assert 250_000 < model.kv_capacity < 350_000
        assert model.host_capacity == 2 * model.kv_capacity

    def test_one_constant_is_scaled(self):
        model = engine_model(QWEN_32B)
        half = scaled(model, "kv_capacity", 0.5)
        assert half.kv_capacity == model.kv_capacity // 2
        assert half._replace(kv_capacity=model.kv_capacity) == model


class TestWorkload:
    def test_turns_are_as_described(self):
        turns = np.stack([draw_group(HEAVY, 7, index, 8).turns for index in range(1500)])
        log = np.log(turns)
        assert np.median(turns) == pytest.approx(30, rel=0.05)
        assert turns.max() <= 300
        # The cap on tokens cuts the upper tail, and so some variance.
        between = log.mean(axis=1).var() - log.var(axis=1, ddof=1).mean() / 8
        assert between / (between + log.var(axis=1, ddof=1).mean()) == pytest.approx(0.6, abs=0.05)

    def test_no_context_is_longer_than_the_most(self):
        for index in range(200):
            script = draw_group(HEAVY, 7, index, 8)
            assert (script.grown_tokens + HEAVY.prompt_tokens <= HEAVY.max_tokens).all()

    def test_a_group_is_the_same_for_everybody(self):
        first, again = (draw_group(HEAVY, 7, 12, 8) for _ in range(2))
        assert np.array_equal(first.generated, again.generated)
        assert not np.array_equal(first.turns, draw_group(HEAVY, 8, 12, 8).turns)
