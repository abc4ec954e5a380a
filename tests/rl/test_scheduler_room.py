"""Who takes blocks from whom: our scheduler over vLLM's, without an engine.

Invariants are checked at every step, and a wrong block ends the test
(`tests/support/model_runner.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.desk import Desk
from tests.support.random_model import random_tokens
from tests.support.vllm_scheduler import BLOCK, Core, configuration
from venusrl.engine import room
from venusrl.engine.counting import count_prefill
from venusrl.engine.scheduler import PriorityScheduler
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

Start = Callable[..., "Engine"]


class Engine:
    """One block is vLLM's own."""

    def __init__(self, core: Core, desk: Desk) -> None:
        self.core, self.desk, self.scheduler = core, desk, core.scheduler

    def pin(self, number: int, blocks: int, *, rank: int) -> None:
        """A turn that has ended, and left so many full blocks."""
        self.desk.decide(number, rank=rank, level=Level.HIGH)
        self.core.ask(f"{number}", number, random_tokens(number, BLOCK * blocks), 1)
        self.core.finish()
        assert self.pinned(number) == blocks

    def pinned(self, number: int) -> int:
        record = self.scheduler.residency.records.get(number)
        return record.pinned if record else 0

    def ask(
        self,
        number: int,
        blocks: int,
        generate: int = 1,
        *,
        rank: int,
        level: Level = Level.LOW,
        critical: bool = True,
        prompt: int | None = None,
    ) -> str:
        """A turn that begins with full blocks; `prompt`: the number of whoever has the same."""
        self.desk.decide(number, rank=rank, level=level, critical=critical)
        name = f"{number} again"
        tokens = random_tokens(number if prompt is None else prompt, BLOCK * blocks)
        self.core.ask(name, number, tokens, generate)
        return name

    def run(self, *args: int, **kwargs: object) -> str:
        name = self.ask(*args, **kwargs)  # type: ignore[arg-type]
        self.core.step()
        assert name in self.running
        return name

    @property
    def running(self) -> set[str]:
        return {request.request_id for request in self.scheduler.running}


@pytest.fixture
def start(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    desk = Desk.open(tmp_path / "table", 32)
    started = []

    def one(blocks: int, *, wait_factor: float = 0.0) -> Engine:
        options = {
            "table": str(desk.table.path),
            "check_every": 1,
            "prefill_tokens": 0,
            "wait_factor": wait_factor,
        }
        given = configuration(options, blocks=1 + blocks)
        started.append(Core.start(PriorityScheduler, model, given, depth=1))
        return Engine(started[-1], desk)

    yield one
    for core in started:
        core.scheduler.shutdown()


@pytest.mark.parametrize(("rank", "goes"), [(12, "pins"), (5, "turn")])
def test_where_a_turn_grows_the_worst_gives_way_be_it_pinned_or_running(
    start: Start, rank: int, goes: str
) -> None:
    engine = start(8)
    engine.pin(1, 2, rank=rank)
    best = engine.run(3, 2, 30, rank=1)  # grows first; both have a block to grow into
    worst = engine.run(2, 2, 30, rank=9)
    for _ in range(BLOCK + 2):
        engine.core.step()
    assert (worst in engine.running) == (goes == "pins")
    assert (engine.pinned(1) < 2) == (goes == "pins")
    assert best in engine.running
    engine.core.finish()


def test_a_turn_that_is_alone_takes_what_it_needs_from_anybody(start: Start) -> None:
    engine = start(6)
    engine.pin(1, 3, rank=1)
    counts = count_prefill(engine.scheduler)
    alone = engine.run(2, 2, 30, rank=9)
    engine.core.finish()
    assert counts.preempted == 0
    assert len(engine.core.take_finished()[alone]) == 30
    assert engine.pinned(1) < 3


@pytest.mark.parametrize(
    ("level", "rank", "comes"),
    [(Level.HIGH, 2, True), (Level.LOW, 2, False), (Level.HIGH, 6, False)],
)
def test_who_waits_takes_pins_of_worse_rank_if_its_own_are_kept(
    start: Start, level: Level, rank: int, comes: bool
) -> None:
    engine = start(8)
    engine.pin(1, 3, rank=5)
    runs = engine.run(2, 1, 3, rank=1)
    waits = engine.ask(3, 4, 2, rank=rank, level=level)
    engine.core.step()
    assert engine.running == ({runs, waits} if comes else {runs})
    assert engine.pinned(1) == (0 if comes else 3)
    engine.core.finish()


def test_pins_of_the_worst_rank_go_first(start: Start) -> None:
    engine = start(9)
    for number, rank in ((1, 5), (2, 7), (3, 6)):
        engine.pin(number, 2, rank=rank)
    engine.run(4, 1, 3, rank=1)
    engine.run(5, 2, 2, rank=2, level=Level.HIGH)
    assert [engine.pinned(number) for number in (1, 2, 3)] == [2, 0, 2]
    engine.core.finish()


def test_a_turn_in_a_full_engine_finds_its_own_context(start: Start) -> None:
    engine = start(8)
    engine.pin(1, 3, rank=9)
    engine.pin(2, 4, rank=1)
    counts = count_prefill(engine.scheduler)
    engine.run(1, 6, 2, rank=9, level=Level.HIGH)
    assert (counts.asked_tokens, counts.hit_tokens) == (6 * BLOCK, 3 * BLOCK)
    assert engine.pinned(2) == 0, "the engine is idle"
    engine.core.finish()


def test_nothing_is_destroyed_for_one_that_would_not_fit_then(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alone and has not waited for long enough to take any."""
    engine = start(9, wait_factor=1.0)
    monkeypatch.setattr(type(engine.scheduler.step_cost), "token_s", 1.0)
    engine.pin(1, 2, rank=5)
    engine.pin(2, 5, rank=1)
    engine.ask(3, 6, 2, rank=3, level=Level.HIGH)
    engine.core.step()
    assert engine.running == set()
    assert (engine.pinned(1), engine.pinned(2)) == (2, 5)


def test_only_the_first_that_waits_may_take_what_others_need_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(room, "time", type("Clock", (), {"monotonic": lambda: now[0]}))
    engine = start(4, wait_factor=2.0)
    monkeypatch.setattr(type(engine.scheduler.step_cost), "token_s", 1 / BLOCK)
    engine.run(1, 3, 9, rank=9, critical=False)
    first = engine.ask(2, 3, 2, rank=2)
    engine.core.step()
    now[0] += 3.0
    better = engine.ask(3, 3, 2, rank=1)  # three blocks, and one to grow for who runs: 8 s
    engine.core.step()
    for _ in range(2):
        now[0] += 3.0
        engine.core.step()
    assert engine.scheduler.counts.displaced == 0, "the first is another, and has waited for 6 s"
    now[0] += 3.0
    engine.core.step()
    assert engine.running == {better}
    engine.core.finish()
    assert len(engine.core.take_finished()[first]) == 2


def test_a_prompt_that_a_sibling_holds_needs_no_room(start: Start) -> None:
    engine = start(8)
    first = engine.run(1, 5, 20, rank=1, prompt=1)
    second = engine.run(2, 6, 2, rank=2, prompt=1)
    assert engine.running == {first, second}
    engine.core.finish()


def test_no_more_are_displaced_than_make_room_the_last_in_rank_first(start: Start) -> None:
    engine = start(10)
    names = {rank: engine.run(rank, 2, 9, rank=rank, critical=False) for rank in (5, 7, 6)}
    critical = engine.ask(1, 2, 2, rank=9)
    engine.core.step()
    assert engine.running == {names[5], names[6], critical}
    engine.core.finish()


def test_nobody_is_displaced_for_one_that_would_not_fit_then(start: Start) -> None:
    engine = start(8)
    critical = engine.run(1, 3, 9, rank=1)
    background = engine.run(2, 2, 9, rank=5, critical=False)
    engine.ask(3, 6, 2, rank=2)
    engine.core.step()
    assert engine.running == {critical, background}
    assert engine.scheduler.counts.displaced == 0
    engine.core.finish()


def test_a_seat_is_reason_enough_to_displace(start: Start) -> None:
    engine = start(60)
    names = [engine.run(n, 1, 20, rank=n, critical=False) for n in range(1, 9)]
    critical = engine.run(9, 1, 2, rank=9)
    assert engine.running == {*names[:-1], critical}
    engine.core.finish()


def test_what_siblings_share_is_not_counted_on(start: Start) -> None:
    engine = start(8)
    for number in (2, 3):
        engine.run(number, 4, 9, rank=number, critical=False, prompt=2)
    critical = engine.run(1, 3, 2, rank=9)
    assert engine.running == {critical}
    engine.core.finish()
