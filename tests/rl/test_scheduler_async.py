"""Our scheduler, asynchronous too, over vLLM's own: same tokens as stock, and no wrong block.

vLLM has no asynchronous scheduling on CPUs, so here is no engine: the test is the engine core, and
books take the place of the model (`tests/support/vllm_scheduler.py`). Invariants are checked at
every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tests.support.desk import Desk
from tests.support.random_model import random_tokens
from tests.support.vllm_scheduler import BLOCK, Core, configuration
from venusrl.engine.scheduler import AsyncPriorityScheduler, PriorityScheduler
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

COUNT, GROUP, TURNS = 24, 4, 6
BLOCKS = 25  # what 8 contexts of the greatest length need six times
STOP = 7  # ends a turn, while the token behind it is under way

Start = Callable[..., Core]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.open(tmp_path / "table", 32)


@pytest.fixture
def start(model: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = []

    def one(
        scheduler_class: Any,
        *,
        blocks: int = BLOCKS,
        host_chunks: int = 0,
        prefill: int = 40,
        **how: Any,
    ) -> Core:
        options = {
            "table": str(desk.table.path),
            "check_every": 1,
            "wait_factor": 0.0,
            "prefill_tokens": prefill,
        }
        ours = scheduler_class in (PriorityScheduler, AsyncPriorityScheduler)
        given = configuration(options if ours else None, blocks=blocks, host_chunks=host_chunks)
        started.append(Core.start(scheduler_class, model, given, **how))
        return started[-1]

    yield one
    for core in started:
        core.scheduler.shutdown()


def play(core: Core, desk: Desk, *, seed: int) -> list[list[int]]:
    """Whole contexts in the end. Which turns are asked for when, aborted and asked for again, what
    is decided and when weights are pushed is chance; what the contexts are is not."""
    chance = random.Random(seed)
    contexts = [
        random_tokens(number // GROUP, 44) + random_tokens(100 + number, 20)
        for number in range(COUNT)
    ]
    left = dict.fromkeys(range(COUNT), TURNS)
    under_way: dict[str, int] = {}
    asked = 0
    while left:
        if chance.random() < 0.7:
            desk.shuffle(left, chance)
        for number in left.keys() - set(under_way.values()):
            if chance.random() < 0.3:
                asked += 1
                length = 4 + hash((number, left[number])) % 20
                core.ask(f"{number}:{asked}", number, contexts[number], length, stop=STOP)
                under_way[f"{number}:{asked}"] = number
        if under_way and chance.random() < 0.03:
            name = chance.choice(sorted(under_way))
            core.abort(name)
            del under_way[name]
        if chance.random() < 0.02:
            core.push()
        core.step()
        for name, produced in core.take_finished().items():
            number = under_way.pop(name)
            contexts[number] += produced + random_tokens(len(contexts[number]), 9)
            left[number] -= 1
            if not left[number]:
                del left[number]
    core.finish()
    return contexts


@pytest.mark.parametrize("host_chunks", [0, 40], ids=["gpu", "host"])
@pytest.mark.parametrize("v2", [False, True], ids=["runner1", "runner2"])
def test_tokens_are_those_of_stock_vllm_scheduled_ahead_or_not(
    start: Start, desk: Desk, v2: bool, host_chunks: int
) -> None:
    def run(scheduler_class: Any, depth: int, seed: int) -> Core:
        core = start(scheduler_class, depth=depth, v2=v2, host_chunks=host_chunks)
        contexts.append(play(core, desk, seed=seed))
        assert contexts[-1] == contexts[0]
        assert core.runner.loaded >= host_chunks
        return core

    contexts: list[list[list[int]]] = []
    run(Scheduler, 1, seed=1)
    run(AsyncScheduler, 2, seed=2)
    for scheduler_class, depth in ((PriorityScheduler, 1), (AsyncPriorityScheduler, 2)):
        core = run(scheduler_class, depth, seed=3)
        counts = core.scheduler.counts
        assert counts.checked == counts.steps >= 500
        assert counts.demoted >= 50
        # With a host tier nobody is displaced of whom a step is under way.
        ahead = depth > 1
        assert counts.displaced >= (5 if ahead and host_chunks else 50)
        assert core.stale >= (50 if ahead and not host_chunks else 0)


def test_what_is_displaced_before_it_is_computed_is_not_found_later(
    start: Start, desk: Desk
) -> None:
    """vLLM names a block once a step is to fill it. Decoding comes first in a step, so the last in
    rank may lose its place to prefill of the same step; its last block then holds less."""
    prompt = random_tokens(1, 3 * BLOCK)
    desk.decide(1, rank=1, level=Level.LOW)
    desk.decide(2, rank=9, level=Level.LOW, critical=False)
    desk.decide(3, rank=5, level=Level.LOW, critical=False)
    # The first four and the second's last, and two of each of the third's prefills.
    core = start(PriorityScheduler, blocks=1 + 4 + 1 + 2, prefill=30, depth=1)
    core.scheduler.scheduler_reserve_full_isl = False
    core.ask("first", 1, prompt + random_tokens(2, 8), 6)
    second = prompt + random_tokens(3, BLOCK - 2)
    core.ask("second", 2, second, 3)
    core.step()
    core.ask("third", 3, random_tokens(4, 100), 1)
    core.step()
    core.step()
    assert {r.request_id for r in core.scheduler.running} == {"first"}
    core.abort("third")
    core.finish()
    core.ask("next", 2, second + core.take_finished()["second"] + random_tokens(5, 9), 2)
    core.finish()


def test_a_turn_that_ends_while_it_is_displaced_leaves_a_record(start: Start, desk: Desk) -> None:
    """Its last token was under way when it lost its place."""
    desk.decide(1, rank=1, level=Level.HIGH, critical=False)
    desk.decide(2, rank=2, level=Level.LOW)
    core = start(AsyncPriorityScheduler, blocks=1 + 8, depth=2)
    core.ask("first", 1, random_tokens(1, 4 * BLOCK + 3), 2)
    core.step()
    core.step()
    core.ask("second", 2, random_tokens(2, 5 * BLOCK), 1)
    core.step()
    assert core.scheduler.counts.displaced == 1
    while "first" in core.scheduler.requests:
        core.step()
    assert core.scheduler.residency.records[1].pinned > 0
    core.finish()
    assert set(core.take_finished()) == {"first", "second"}
