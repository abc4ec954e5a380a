"""The simulated engines against closed forms, and the books of a cluster."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from venusrl.schedule.baselines import Fcfs, OldestFirst, ProgramPause  # noqa: E402
from venusrl.schedule.priority import Priority  # noqa: E402
from venusrl.schedule.snapshot import Phase  # noqa: E402
from venusrl.simulate.cluster import Cluster, Contender, Scenario  # noqa: E402
from venusrl.simulate.contenders import BASELINES, OURS, run  # noqa: E402
from venusrl.simulate.engines import STOCK, RowPhase, Rules, new_engines  # noqa: E402
from venusrl.simulate.hardware import (  # noqa: E402
    QWEN_32B,
    EngineModel,
    engine_model,
    scaled,
)
from venusrl.simulate.workload import HEAVY, LogNormal, Workload, draw_group  # noqa: E402

PLAIN = EngineModel(
    overhead_s=0.001,
    weights_s=0.010,
    read_s=1e-6,
    compute_s=1e-4,
    attend_s=1e-9,
    reload_s=3e-6,
    writeback_s=3e-6,
    kv_capacity=100_000,
    host_capacity=0,
    step_tokens=2000,
    max_running=64,
)
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


def engines_of(model, rules=STOCK, *, engines=1, rows=8):
    return new_engines(model, rules, engines=engines, rows=rows, groups=rows)


def start(engines, row, prompt, turns, *, group=None):
    """A trajectory of (generated, observed, tool seconds) per turn."""
    generated, observed, tool_s = (np.asarray(column) for column in zip(*turns, strict=True))
    group = row if group is None else group
    engines.start(row, group, prompt, generated, observed, tool_s.astype(float))


def place(engines, rows, *, ranks=None, levels=None, critical=None, worker=0, admitted=None):
    n = len(rows)
    engines.place(
        np.asarray(rows),
        np.zeros(n, bool) if critical is None else np.asarray(critical),
        np.arange(n) if ranks is None else np.asarray(ranks),
        np.ones(n, bool) if admitted is None else np.asarray(admitted),
        np.ones(n, int) if levels is None else np.asarray(levels),
        np.full(n, worker),
    )


def run_out(engines, completions):
    done = 0
    while done < completions:
        found = engines.advance(math.inf)
        assert found > 0, "the engines stand still"
        done += found
    return engines.now


def prefill_s(model, tokens, before=0):
    """Chunks of at most a step's tokens, each over what is before its middle."""
    total, at = 0.0, before
    while tokens > 0:
        chunk = min(tokens, model.step_tokens)
        total += model.overhead_s + max(model.weights_s, chunk * model.compute_s)
        total += chunk * (at + chunk / 2) * model.attend_s
        at, tokens = at + chunk, tokens - chunk
    return total


def decode_s(model, count, context):
    first = model.overhead_s + model.weights_s + model.read_s * context
    return count * first + model.read_s * count * (count - 1) / 2


class TestOneTrajectory:
    def test_takes_the_sum_of_its_parts(self):
        engines = engines_of(PLAIN)
        start(engines, 0, 3000, [(100, 500, 2.0), (50, 700, 9.0)])
        place(engines, [0])
        expected = prefill_s(PLAIN, 3000) + decode_s(PLAIN, 100, 3000) + 2.0
        # The second turn finds its context cached; what the last tool answers is never read.
        expected += prefill_s(PLAIN, 500, before=3100) + decode_s(PLAIN, 50, 3600)
        assert run_out(engines, 1) == pytest.approx(expected, rel=1e-6)
        assert engines.counts()["prefilled"] == 3500
        assert engines.counts()["decoded"] == 150

    def test_finds_whole_blocks_in_the_cache(self):
        engines = engines_of(PLAIN._replace(block_tokens=32))
        start(engines, 0, 3000, [(100, 500, 2.0), (50, 700, 9.0)])
        place(engines, [0])
        run_out(engines, 1)
        counts = engines.counts()
        assert counts["hit"] == 3100 // 32 * 32
        assert counts["prefilled"] == 3500 + 3100 % 32

    def test_does_not_depend_on_how_often_somebody_looks(self):
        times = []
        for interval in (math.inf, 0.05):
            engines = engines_of(PLAIN)
            start(engines, 0, 3000, [(100, 500, 2.0), (50, 700, 9.0)])
            place(engines, [0])
            while engines.advance(engines.now + interval) == 0:
                place(engines, [0])
            times.append(engines.now)
        assert times[0] == pytest.approx(times[1], rel=1e-3)

    def test_a_little_prefill_hides_behind_the_weights(self):
        """What another prefills costs one who decodes nothing but its attention."""
        ends = {}
        for tokens in (0, 90):
            model = PLAIN._replace(read_s=0.0, attend_s=0.0)
            engines = engines_of(model, Rules(prefill_tokens=tokens))
            start(engines, 0, 1000, [(200, 1, 1.0)])
            start(engines, 1, 6000, [(200, 1, 1.0)])
            place(engines, [0])
            engines.advance(0.5)
            place(engines, [0, 1])
            engines.advance(math.inf)
            ends[tokens] = engines.now
            counts = engines.counts()
            if tokens:
                assert counts["prefill_s"] == pytest.approx(1000 * 1e-4 - 0.010, rel=0.01)
        alone = prefill_s(model, 1000) + decode_s(model, 200, 0)
        assert ends[90] == pytest.approx(alone, rel=1e-3)
        assert ends[0] > alone + 0.5

    def test_a_batch_reads_all_its_contexts(self):
        engines = engines_of(PLAIN)
        for row in range(4):
            start(engines, row, 1000, [(200, 1, 1.0)])
        place(engines, range(4))
        prefilled = PLAIN.overhead_s + 2000 * PLAIN.compute_s + 2 * 1000 * 500 * PLAIN.attend_s
        each = PLAIN.overhead_s + PLAIN.weights_s
        finish = run_out(engines, 4)
        # Two fill a step; these two decode one token while the others prefill.
        assert finish == pytest.approx(2 * prefilled + 200 * each + 0.2 * 4.4, rel=0.02)


def test_requests_that_arrive_one_by_one_wait_as_in_m_d_1():
    """One place, constant service, Poisson arrivals at a load of 0.7: the mean wait is
    ρ s / (2 (1 - ρ)), Pollaczek and Khinchine."""
    model = PLAIN._replace(max_running=1, read_s=0.0, attend_s=0.0, kv_capacity=10**9)
    service = prefill_s(model, 99) + decode_s(model, 50, 0)
    jobs, load = 6000, 0.7
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(service / load, jobs))
    # The arrivals are the ends of tools, after a first turn of all that serves to set them.
    first_s = prefill_s(model, 100) + decode_s(model, 1, 0)
    arrivals += jobs * first_s
    engines = engines_of(model, rows=jobs)
    for row in range(jobs):
        start(engines, row, 100, [(1, 99, arrivals[row] - (row + 1) * first_s), (50, 1, 1.0)])
    place(engines, range(jobs))
    run_out(engines, jobs)
    mean = float(np.mean(engines.since - arrivals)) - service
    assert mean == pytest.approx(load * service / (2 * (1 - load)), rel=0.12)


class TestCache:
    def turns(self, count):
        return [(10, 90, 5.0)] * count

    def hit_rate(self, trajectories, *, rules=STOCK, levels=None, host=0):
        """Everybody works in turn, on contexts of about 10,000 tokens; 95,000 fit."""
        model = PLAIN._replace(kv_capacity=95_000, host_capacity=host, max_running=1)
        engines = engines_of(model, rules, rows=trajectories)
        for row in range(trajectories):
            start(engines, row, 9000, self.turns(12))
        place(engines, range(trajectories), levels=levels)
        run_out(engines, trajectories)
        return engines.counts()

    def test_least_recently_used_falls_off_a_cliff(self):
        """Cyclic use of one more than fits: each is evicted just before it comes again."""
        fits, too_many = self.hit_rate(9), self.hit_rate(14)
        assert fits["hit"] / fits["asked"] > 0.85
        assert too_many["hit"] / too_many["asked"] < 0.15

    def test_levels_keep_those_that_are_protected(self):
        protected = self.hit_rate(14, rules=Rules(by_level=True), levels=[2] * 7 + [1] * 7)
        cliff = self.hit_rate(14)
        assert protected["hit"] > 3 * cliff["hit"]

    def test_a_host_tier_turns_computation_into_copies(self):
        without, with_host = self.hit_rate(14), self.hit_rate(14, host=200_000)
        assert with_host["prefilled"] < 0.5 * without["prefilled"]
        assert with_host["reloaded"] > 0
        assert with_host["written_back"] >= with_host["reloaded"] / 13

    def test_a_prompt_is_stored_once_for_siblings(self):
        engines = engines_of(PLAIN)
        for row in range(4):
            start(engines, row, 9000, self.turns(2), group=0)
        place(engines, range(4))
        engines.advance(20.0)
        ((used, _),) = engines.memory()
        assert 9000 <= used < 9000 + 4 * 300
        assert engines.counts()["prefilled"] < 9000 + 4 * 300

    def test_host_memory_keeps_what_nothing_else_holds(self):
        """Full host memory gives up copies of what the GPU holds as well, before sole copies."""
        recomputed = {}
        for by_level in (False, True):
            model = PLAIN._replace(kv_capacity=65_000, host_capacity=75_000, max_running=1)
            engines = engines_of(model, Rules(by_level=by_level), rows=10)
            for row in range(10):
                start(engines, row, 9000, self.turns(12))
            place(engines, range(10))
            run_out(engines, 10)
            recomputed[by_level] = engines.counts()["prefilled"]
        assert recomputed[True] < 0.7 * recomputed[False]

    def test_what_is_retired_leaves_nothing(self):
        engines = engines_of(PLAIN, engines=2)
        for row in range(4):
            start(engines, row, 9000, self.turns(3), group=row // 2)
        place(engines, range(4))
        engines.advance(3.0)
        for row in range(4):
            engines.retire(row)
        assert engines.memory() == [(0, 0), (0, 0)]
        assert engines.advance(100.0) == 0
        assert (engines.phase == RowPhase.EMPTY).all()


class TestBlocks:
    """Memory is held in whole blocks of 32 tokens."""

    @pytest.mark.parametrize(
        ("prompt", "generated", "blocks"),
        [(128, 1, 1), (128, 32, 1), (128, 33, 2), (100, 28, 1), (100, 29, 2)],
    )
    def test_siblings_cross_a_boundary_together(self, prompt, generated, blocks):
        """`blocks`: those of each. A prompt's last block is shared only if it is filled."""
        enough = prompt // 32 * 32 + 8 * blocks * 32
        for capacity in (enough, enough - 32):
            engines = engines_of(PLAIN._replace(kv_capacity=capacity, block_tokens=32))
            for row in range(8):
                start(engines, row, prompt, [(generated, 1, 1.0)], group=0)
            place(engines, range(8))
            run_out(engines, 8)
            in_lockstep = engines.counts()["steps"] == 1 + generated
            assert in_lockstep == (capacity == enough)

    def test_the_first_who_finds_no_block_ends_a_segment(self):
        """Two with 28 and 8 tokens left in their blocks, and one block beside these."""
        engines = engines_of(PLAIN._replace(kv_capacity=256 + 32, block_tokens=32))
        start(engines, 0, 100, [(40, 1, 1.0)])
        start(engines, 1, 120, [(40, 1, 1.0)])
        place(engines, [0, 1])
        engines.advance(math.inf)
        assert engines.counts()["preempted"] == 1
        assert engines.context[:2].tolist() == [140, 148]
        # What was not filled is free again.
        assert engines.kv[:2].tolist() == [128, 128]
        assert engines.memory() == [(256, 0)]

    @pytest.mark.parametrize(("generated", "left"), [(28, 992), (29, 960)])
    def test_the_cache_gives_up_whole_blocks(self, generated, left):
        """One idle context of 1,000 tokens, beside one that fills its 128 tokens and grows on."""
        model = PLAIN._replace(kv_capacity=992 + 128, block_tokens=32)
        engines = engines_of(model, Rules(evict_tokens=1))
        start(engines, 0, 960, [(40, 24, 100.0), (1, 1, 1.0)])
        start(engines, 1, 100, [(generated, 1, 1.0)])
        place(engines, [0])
        engines.advance(5.0)
        place(engines, [0, 1])
        engines.advance(50.0)
        assert engines.kv[0] == left
        engines.advance(math.inf)
        assert engines.counts()["hit"] == left

    def test_a_context_that_is_cached_whole_computes_its_last_block(self):
        engines = engines_of(PLAIN._replace(block_tokens=32))
        for row in range(3):
            start(engines, row, 128, [(1, 1, 1.0)], group=0)
        place(engines, range(3))
        run_out(engines, 3)
        assert engines.counts()["prefilled"] == 128 + 2 * 32


class TestFullMemory:
    def test_one_maximal_context_after_the_other(self):
        """Memory for barely one: contexts that displace each other still end."""
        for rules in (STOCK, Rules(by_rank=True), OURS):
            engines = engines_of(PLAIN._replace(kv_capacity=11_000), rules)
            for row in range(5):
                start(engines, row, 8000, [(500, 300, 0.01), (500, 300, 0.01), (500, 1, 0.1)])
            place(engines, range(5), levels=[2] * 5, critical=[True] * 5)
            run_out(engines, 5)

    def test_what_is_reserved_for_growth_keeps_others_waiting(self):
        """Two contexts of 4,500 in 10,000 tokens, with room to grow of 128 or 1,200 for each."""
        for reserve, running in ((128, 2), (1200, 1)):
            rules = OURS._replace(reserve_tokens=reserve)
            engines = engines_of(PLAIN._replace(kv_capacity=10_000), rules)
            for row in range(2):
                start(engines, row, 4500, [(300, 1, 1.0)])
            place(engines, [0, 1], levels=[2, 2])
            engines.advance(1.5)
            assert (engines.phase[:2] != RowPhase.WAITING).sum() == running

    def test_blocks_are_evicted_as_few_at_once_as_is_said(self):
        """One that decodes takes what another has cached, little by little."""
        for evict, left in ((1, 4400), (400, 4050)):
            engines = engines_of(PLAIN._replace(kv_capacity=9000), Rules(evict_tokens=evict))
            start(engines, 0, 500, [(1, 3990, 0.0), (1, 1, 100.0), (1, 1, 1.0)])
            start(engines, 1, 4490, [(40, 1, 1.0)])
            place(engines, [0])
            engines.advance(5.0)
            place(engines, [0, 1])
            engines.advance(50.0)
            assert left <= engines.kv[0] < left + 100

    def test_the_last_in_queue_order_is_preempted(self):
        engines = engines_of(PLAIN._replace(kv_capacity=10_000), Rules(by_rank=True))
        for row in range(2):
            start(engines, row, 4500, [(900, 1, 1.0)])
        place(engines, [0, 1], ranks=[1, 0])
        engines.advance(math.inf)
        assert engines.phase.tolist()[:2] == [RowPhase.WAITING, RowPhase.DONE]
        assert engines.counts()["preempted"] >= 1

    def test_those_who_fit_pass_one_who_does_not_for_a_while(self):
        first = {}
        for patience_s in (0.0, 0.5, 1000.0):
            rules = Rules(by_rank=True, by_level=True, patience_s=patience_s)
            model = PLAIN._replace(kv_capacity=20_000, host_capacity=50_000)
            engines = engines_of(model, rules)
            start(engines, 0, 9000, [(300, 1, 1.0)])
            place(engines, [0])
            engines.advance(1.0)
            start(engines, 1, 18_000, [(20, 1, 1.0)])
            # Short ones, one after the other: without an end to patience they would go first.
            for row in range(2, 8):
                start(engines, row, 9000, [(200 + 70 * row, 1, 1.0)])
            place(engines, range(8))
            ends = {}
            while len(ends) < 8:
                engines.advance(math.inf)
                for row in np.flatnonzero(engines.phase == RowPhase.DONE).tolist():
                    ends[row] = len(ends)
                    engines.retire(row)
            first[patience_s] = ends[1]
        assert first == {0.0: 1, 0.5: 2, 1000.0: 7}

    @pytest.mark.parametrize("host", [0, 50_000])
    def test_nobody_is_displaced_where_a_host_tier_lets_turns_wait(self, host):
        rules = Rules(by_rank=True, by_level=True, displace=True)
        engines = engines_of(PLAIN._replace(kv_capacity=9000, host_capacity=host), rules)
        start(engines, 0, 6000, [(2000, 1, 1.0)])
        place(engines, [0], ranks=[1], levels=[1])
        engines.advance(2.0)
        start(engines, 1, 6000, [(50, 1, 1.0)])
        place(engines, [0, 1], ranks=[1, 0], levels=[1, 2], critical=[False, True])
        engines.advance(math.inf)
        assert engines.counts()["preempted"] == (0 if host else 1)

    def test_a_critical_request_displaces_a_background_one(self):
        first = {}
        for displace in (False, True):
            rules = Rules(by_rank=True, by_level=True, displace=displace)
            engines = engines_of(PLAIN._replace(kv_capacity=9000), rules)
            start(engines, 0, 6000, [(2000, 1, 1.0)])
            place(engines, [0], ranks=[1], levels=[1])
            engines.advance(2.0)
            start(engines, 1, 6000, [(50, 1, 1.0)])
            place(engines, [0, 1], ranks=[1, 0], levels=[1, 2], critical=[False, True])
            engines.advance(math.inf)
            first[displace] = int(np.flatnonzero(engines.phase == RowPhase.DONE)[0])
        assert first == {False: 0, True: 1}


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
