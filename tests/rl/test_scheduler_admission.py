"""What a step takes and who waits: our scheduler in an engine that the test advances step by step.

Invariants are checked at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.desk import Desk
from tests.support.random_model import random_model, random_tokens
from venusrl.engine import EngineConfig, admission, room
from venusrl.engine.admission import Passing
from venusrl.engine.engine_process import environment
from venusrl.engine.shared_table import Claim
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

BLOCK, BLOCKS, CONTEXT = 32, 17, 512  # one block is vLLM's own
PREFILL = 24


@dataclass
class Engine:
    """A request is one turn of its trajectory."""

    llm: Any
    desk: Desk
    scheduled: dict[str, int] = field(default_factory=dict)  # tokens of the last step, by request
    produced: dict[str, int] = field(default_factory=dict)  # tokens of all requests
    running: set[str] = field(default_factory=set)

    @property
    def scheduler(self) -> Any:
        return self.llm.engine_core.engine_core.scheduler

    def ask(
        self,
        number: int,
        tokens: int,
        generate: int,
        *,
        rank: int,
        critical: bool = False,
        level: Level = Level.LOW,
    ) -> str:
        from vllm import SamplingParams

        self.desk.decide(number, rank=rank, level=level, critical=critical)
        self.llm.add_request(
            str(number),
            {"prompt_token_ids": random_tokens(number, tokens)},
            SamplingParams(
                temperature=0.0,
                max_tokens=generate,
                detokenize=False,
                ignore_eos=True,
                extra_args=Claim(number, number).extra_args,
            ),
        )
        self.running.add(str(number))
        return str(number)

    def step(self) -> None:
        self.scheduled = {}
        for output in self.llm.step():
            self.produced[output.request_id] = len(output.outputs[0].token_ids)
            if output.finished:
                self.running.discard(output.request_id)

    def finish(self) -> None:
        while self.llm.has_unfinished_requests():
            self.step()
        self.produced.clear()
        self.desk.leave(*self.desk.alive)
        self.scheduler.reset_prefix_cache()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    from venusrl.engine.server import make_llm

    place = tmp_path_factory.mktemp("admission")
    random_model(place / "model", 3, tied=False, positions=CONTEXT)
    desk = Desk.open(place / "table", 16)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(1).items():
            patch.setenv(name, value)
        options = {"table": str(desk.table.path), "check_every": 1, "prefill_tokens": PREFILL}
        config = EngineConfig(
            max_model_len=CONTEXT,
            max_concurrency=8,
            kv_cache_bytes=1 << 28,
            kv_blocks=BLOCKS,
            block_tokens=BLOCK,
            step_tokens=512,
            scheduler=options,
        )
        llm = make_llm(str(place / "model"), config)
        engine = Engine(llm, desk)
        schedule = engine.scheduler.schedule

        def observed(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            engine.scheduled = {
                name.split("-")[0]: count for name, count in output.num_scheduled_tokens.items()
            }  # vLLM adds something of its own to the names
            return output

        engine.scheduler.schedule = observed
        yield engine
        llm.engine_core.shutdown()


@pytest.fixture
def engine(whole: Engine) -> Iterator[Engine]:
    scheduler = whole.scheduler
    options = scheduler.options
    yield whole
    scheduler.options, scheduler.passing = options, Passing(options.patience_s)
    whole.finish()


def patient(engine: Engine, patience_s: float) -> None:
    scheduler = engine.scheduler
    scheduler.options = replace(scheduler.options, patience_s=patience_s)
    scheduler.passing = Passing(patience_s)


def test_prefill_takes_little_of_a_step_in_which_others_decode(engine: Engine) -> None:
    first = engine.ask(1, 100, 12, rank=1)
    engine.step()
    assert engine.scheduled == {first: 100}, "nobody decodes: all at once"
    second = engine.ask(2, 60, 1, rank=2)
    third = engine.ask(3, 40, 1, rank=0)
    steps = []
    while engine.running - {first}:
        engine.step()
        steps.append(engine.scheduled)
    # The better rank first; what it leaves of a step is the other's.
    assert [step.get(third, 0) for step in steps] == [24, 16, 0, 0, 0]
    assert [step.get(second, 0) for step in steps] == [0, 8, 24, 24, 4]
    assert all(step[first] == 1 for step in steps)


def test_without_a_budget_prefill_takes_what_a_step_has(engine: Engine) -> None:
    engine.scheduler.options = replace(engine.scheduler.options, prefill_tokens=0)
    first = engine.ask(1, 40, 3, rank=1)
    engine.step()
    second = engine.ask(2, 300, 1, rank=2)
    engine.step()
    assert engine.scheduled == {first: 1, second: 300}


def test_who_finds_no_room_is_passed_by_those_that_do_and_nobody_is_displaced(
    engine: Engine,
) -> None:
    patient(engine, 3600.0)
    runs = engine.ask(1, 200, 60, rank=5)
    engine.step()
    large = engine.ask(2, 350, 2, rank=1, critical=True)
    small = engine.ask(3, 40, 2, rank=2)
    before = replace(engine.scheduler.counts)
    engine.step()
    assert set(engine.scheduled) == {runs, small}
    assert engine.scheduler.counts.passed > before.passed
    while engine.running:
        engine.step()
    assert engine.scheduler.counts.displaced == before.displaced
    assert engine.produced == {runs: 60, small: 2, large: 2}


@pytest.mark.parametrize("patience_s", [0.0, 10.0])
def test_who_has_been_passed_for_long_enough_is_passed_no_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    now = [1000.0]
    monkeypatch.setattr(admission, "time", type("Clock", (), {"monotonic": lambda: now[0]}))
    patient(engine, patience_s)
    runs = engine.ask(1, 200, 60, rank=5)
    engine.step()
    large = engine.ask(2, 350, 2, rank=1)
    if patience_s:
        small = engine.ask(3, 40, 2, rank=2)
        engine.step()
        assert set(engine.scheduled) == {runs, small}
    now[0] += 10.0
    late = engine.ask(4, 40, 2, rank=3)
    while runs in engine.running:
        engine.step()
        assert late not in engine.scheduled and large not in engine.scheduled
    while engine.running:
        engine.step()
    assert engine.produced[large] == engine.produced[late] == 2


@pytest.fixture
def slow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Computing a block takes a second, by the clock that is given."""
    now = [1000.0]
    monkeypatch.setattr(room, "time", type("Clock", (), {"monotonic": lambda: now[0]}))
    monkeypatch.setattr(type(engine.scheduler.step_cost), "token_s", 1 / BLOCK)
    return now


def test_an_idle_engine_takes_what_is_pinned_only_after_as_long_as_computing_it_takes(
    engine: Engine, slow: list[float]
) -> None:
    engine.ask(1, 300, 1, rank=1, level=Level.HIGH)
    engine.step()
    assert engine.scheduler.residency.pinned == 9
    waits = engine.ask(2, 400, 2, rank=2)  # 13 blocks, and 7 are free
    engine.step()
    slow[0] += 5.9
    engine.step()
    assert engine.scheduled == {}
    slow[0] += 0.2
    engine.step()
    assert engine.scheduled == {waits: 400}
    assert engine.scheduler.residency.pinned == 1, "as much as it needs, in steps of eight"


def test_who_is_displaced_has_been_waited_for_as_long_as_computing_it_takes(
    engine: Engine, slow: list[float]
) -> None:
    background = engine.ask(1, 300, 60, rank=9)
    engine.step()
    critical = engine.ask(2, 350, 2, rank=1, critical=True)  # 11 blocks, 6 are free; 1 in reserve
    engine.step()
    slow[0] += 5.9
    engine.step()
    assert engine.scheduled == {background: 1}
    slow[0] += 0.2
    engine.step()
    assert critical in engine.scheduled and background not in engine.scheduled


@pytest.mark.parametrize("tokens", [256, 288])
def test_who_is_admitted_leaves_free_what_those_who_run_are_about_to_take(
    engine: Engine, tokens: int
) -> None:
    for _ in range(200):
        engine.scheduler.room.ended(100)  # turns generate so many: half of it is still to come
    runs = engine.ask(1, 200, 60, rank=5)  # 7 of 16 blocks, soon 8
    engine.step()
    second = engine.ask(2, tokens, 2, rank=6)
    engine.step()
    assert (second in engine.scheduled) == (tokens == 256)
    while engine.running:
        engine.step()
    assert engine.produced == {runs: 60, second: 2}
