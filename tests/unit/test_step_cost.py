"""What computing a token takes, learned from the steps of an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from venusrl.engine import step_cost
from venusrl.engine.step_cost import StepCost, measure_steps

pytestmark = pytest.mark.unit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(step_cost, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def output(*tokens: int) -> Any:
    return SimpleNamespace(num_scheduled_tokens={str(at): n for at, n in enumerate(tokens)})


def test_steps_that_compute_much_tell_the_cost(clock: list[float]) -> None:
    cost = StepCost()
    assert cost.token_s == 0.0
    for tokens, took_s in ((1, 5.0), (200, 0.4), (99, 9.0), (1, 5.0)):
        cost.scheduled(output(tokens, 1))
        clock[0] += took_s
        cost.done()
        clock[0] += 60.0  # nobody works
    assert cost.token_s == pytest.approx(0.002), "decoding and small chunks are not looked at"
    for _ in range(300):
        cost.scheduled(output(200))
        clock[0] += 0.2
        cost.done()
    assert cost.token_s == pytest.approx(0.001, rel=0.01), "it follows what it finds"


def test_a_step_that_was_scheduled_ahead_begins_when_the_one_before_is_done(
    clock: list[float],
) -> None:
    cost = StepCost()
    cost.scheduled(output(100))
    for _ in range(5):
        cost.scheduled(output(100))
        clock[0] += 0.1
        cost.done()
    assert cost.token_s == pytest.approx(0.001)


def test_a_step_that_computes_nothing_is_known_as_such(clock: list[float]) -> None:
    cost = StepCost()
    cost.done()  # of a step that was scheduled before anybody looked
    cost.scheduled(output())
    assert cost.empty
    cost.scheduled(output(1))
    assert not cost.empty


def test_any_scheduler_can_be_measured(clock: list[float]) -> None:
    class Scheduler:
        def schedule(self, throttle: bool) -> Any:
            return output(100)

        def update_from_output(self, scheduled: Any, computed: str) -> str:
            return computed

    scheduler = Scheduler()
    cost = measure_steps(scheduler)
    scheduled = scheduler.schedule(False)
    clock[0] += 0.1
    assert scheduler.update_from_output(scheduled, "done") == "done"
    assert cost.token_s == pytest.approx(0.001)
