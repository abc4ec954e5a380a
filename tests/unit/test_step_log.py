"""What the steps of an engine computed and took, over an engine that a test makes up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from venusrl.engine.counting import StepLog

pytestmark = pytest.mark.unit


class Engine:
    """Schedules what it is told: tokens by request."""

    def __init__(self) -> None:
        self.requests = {"1": SimpleNamespace(num_computed_tokens=105)}
        self.planned: list[dict[str, int]] = []

    def schedule(self) -> Any:
        return SimpleNamespace(num_scheduled_tokens=self.planned.pop(0))

    def step(self) -> None:
        self.schedule()


def test_steps_in_which_nobody_found_room_are_left_out() -> None:
    """A fit by relative errors would be about them alone: many, and each takes next to nothing."""
    engine = Engine()
    log = StepLog(engine, engine)
    engine.planned = [{}, {"1": 1}, {}, {"1": 100}]
    while engine.planned:
        engine.step()
    assert [row[:4] for row in log.take()] == [[1, 105, 0, 0], [0, 0, 100, 5500]]
