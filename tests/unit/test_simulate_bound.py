"""What memory allows at most, against closed forms and against runs."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from venusrl.schedule.priority import Priority  # noqa: E402
from venusrl.simulate.bound import tokens_per_hour_bound  # noqa: E402
from venusrl.simulate.cluster import Cluster, Contender, Scenario  # noqa: E402
from venusrl.simulate.contenders import OURS, Dropping  # noqa: E402
from venusrl.simulate.hardware import QWEN_32B, engine_model  # noqa: E402
from venusrl.simulate.workload import LogNormal, Workload  # noqa: E402


def workload(turns, tool_s=1.0, spread=0.0):
    return Workload(
        name="even",
        turns=LogNormal(turns, spread),
        sibling_icc=0.5,
        prompt_tokens=4000,
        generated=LogNormal(1000, spread),
        observed=LogNormal(1000, spread),
        tool_s=LogNormal(tool_s, spread),
        max_turns=100,
        max_tokens=30_000,
    )


MODEL = engine_model(QWEN_32B)._replace(kv_capacity=60_000)


def test_one_turn_without_tools():
    scenario = Scenario(MODEL, workload(turns=1), batch=4, engines=2)
    # Each holds half its tokens and an eighth of the prompt, and reads all of it.
    decoding = 60_000 / (499.5 + 500)
    step_s = MODEL.overhead_s + MODEL.weights_s + MODEL.read_s * decoding * 4499.5
    assert tokens_per_hour_bound(scenario) == pytest.approx(3600 * 2 * decoding / step_s, rel=1e-6)


def test_a_host_tier_takes_what_waits_for_tools():
    slow = workload(turns=20, tool_s=30.0)
    without = Scenario(MODEL, slow, batch=4)
    with_host = Scenario(MODEL._replace(host_capacity=10**6), slow, batch=4)
    assert tokens_per_hour_bound(with_host) > 1.2 * tokens_per_hour_bound(without)


def test_no_run_exceeds_it():
    scenario = Scenario(MODEL, workload(turns=10, spread=0.5), batch=8, engines=2)
    steps = Cluster(scenario, Contender("ours", Priority(), OURS, 5.0), seed=3).run(9)
    tokens = sum(step.tokens for step in steps[3:])
    hourly = 3600 * tokens / (steps[-1].time_s - steps[2].time_s)
    assert 0.5 * tokens_per_hour_bound(scenario) < hourly < tokens_per_hour_bound(scenario)


def test_a_tight_bound_drops_the_long_ones():
    scenario = Scenario(
        MODEL, workload(turns=10, spread=0.9), batch=4, engines=2, async_factor=2.0, max_staleness=1
    )
    steps = Dropping(scenario, Contender("ours", Priority(), OURS, 5.0), seed=3).run(8)
    assert any(step.dropped for step in steps)
    assert max(step.staleness for step in steps) <= 1
