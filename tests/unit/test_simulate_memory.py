"""What simulated engines hold, find and evict, and who runs where it is full."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from tests.support.simulate import PLAIN, engines_of, place, run_out, start  # noqa: E402
from venusrl.simulate.contenders import OURS  # noqa: E402
from venusrl.simulate.engines import STOCK, RowPhase, Rules  # noqa: E402


def contested(*, displace, host=0):
    """A background turn runs, and a critical one that does not fit beside it has come."""
    rules = Rules(by_rank=True, by_level=True, displace=displace)
    engines = engines_of(PLAIN._replace(kv_capacity=9000, host_capacity=host), rules)
    start(engines, 0, 6000, [(2000, 1, 1.0)])
    place(engines, [0], ranks=[1], levels=[1])
    engines.advance(2.0)
    start(engines, 1, 6000, [(50, 1, 1.0)])
    place(engines, [0, 1], ranks=[1, 0], levels=[1, 2], critical=[False, True])
    return engines


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
        engines = contested(displace=True, host=host)
        engines.advance(math.inf)
        assert engines.counts()["preempted"] == (0 if host else 1)

    def test_a_critical_request_displaces_a_background_one(self):
        first = {}
        for displace in (False, True):
            engines = contested(displace=displace)
            engines.advance(math.inf)
            first[displace] = int(np.flatnonzero(engines.phase == RowPhase.DONE)[0])
        assert first == {False: 0, True: 1}
