"""What the steps of simulated engines take, against closed forms."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from tests.support.simulate import PLAIN, engines_of, place, run_out, start  # noqa: E402
from venusrl.simulate.engines import Rules  # noqa: E402


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
