"""A real engine with asynchronous scheduling, on CPU, under our scheduler: tokens as without.

vLLM refuses it in one place only, `CpuPlatform.check_and_update_config` ("not required on CPU").
That is undone here: its engine core, scheduler and model runner then schedule ahead as on a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.desk import Desk
from tests.support.random_model import random_model, random_tokens
from venusrl.engine import EngineConfig
from venusrl.engine.engine_process import environment
from venusrl.engine.shared_table import Claim
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(600)]

BLOCK, CONTEXT = 32, 384
BLOCKS = CONTEXT // BLOCK + 4  # one context of the greatest length, and little more
COUNT, GROUP, TURNS = 16, 4, 8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("async")
    random_model(place / "model", 3, tied=False, positions=CONTEXT)
    random_model(place / "pushed", 4, tied=False, positions=CONTEXT)
    return place


def started(place: Path, options: dict[str, Any] | None) -> Any:
    """vLLM's engine."""
    from vllm.v1.engine.llm_engine import LLMEngine

    from venusrl.engine.server import engine_args

    config = EngineConfig(
        max_model_len=CONTEXT,
        max_concurrency=12,
        kv_cache_bytes=1 << 28,
        kv_blocks=BLOCKS,
        block_tokens=BLOCK,
        step_tokens=96,
        scheduler=options,
    )
    arguments = engine_args(str(place / "model"), config)
    if options:
        arguments.scheduler_cls = "venusrl.engine.scheduler.AsyncPriorityScheduler"
    return LLMEngine.from_engine_args(arguments)


def allow_async_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def without(_: Any, config: Any) -> None:
        check(config)
        assert config.scheduler_config.async_scheduling is False, "vLLM has it on CPU now"
        config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(without))


@pytest.fixture(scope="module")
def engine(place: Path) -> Iterator[tuple[Any, Desk, list[list[int]]]]:
    """Ours, asynchronous; and what stock vLLM plays."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(1).items():
            patch.setenv(name, value)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more would spin, between operations that take microseconds
        stock = started(place, None)
        expected = play(stock, None)
        stock.engine_core.shutdown()
        allow_async_scheduling(patch)
        desk = Desk.open(place / "table", COUNT)
        options = {
            "table": str(desk.table.path),
            "check_every": 1,
            "wait_factor": 0.0,
            "prefill_tokens": 40,
        }
        llm = started(place, options)
        yield llm, desk, expected
        llm.engine_core.shutdown()
        torch.set_num_threads(threads)


def play(llm: Any, desk: Desk | None) -> list[list[int]]:
    """Whole contexts in the end, decoded greedily; what is decided changes with every turn."""
    from vllm import SamplingParams

    chance = random.Random(5)
    contexts = [random_tokens(number // GROUP, 44) for number in range(COUNT)]
    lengths = [[chance.randrange(8, 28) for _ in range(TURNS)] for _ in range(COUNT)]
    shuffler = random.Random(6)

    def ask(number: int) -> None:
        if desk:
            desk.shuffle([n for n in range(COUNT) if lengths[n]], shuffler)
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=lengths[number].pop(),
            ignore_eos=True,
            detokenize=False,
            extra_args=Claim(number, number).extra_args,
        )
        name = f"{number}.{len(lengths[number])}"
        llm.add_request(name, {"prompt_token_ids": list(contexts[number])}, parameters)

    for number in range(COUNT):
        ask(number)
    while llm.has_unfinished_requests():
        for output in llm.step():
            if output.finished:
                number = int(output.request_id.partition(".")[0])
                contexts[number] += output.outputs[0].token_ids
                contexts[number] += [2 + number] * 9
                if lengths[number]:
                    ask(number)
    return contexts


def test_tokens_are_those_of_stock_vllm(engine: tuple[Any, Desk, list[list[int]]]) -> None:
    llm, desk, expected = engine
    core = llm.engine_core.engine_core
    assert core.async_scheduling and core.batch_queue_size == 2
    assert play(llm, desk) == expected
    counts = core.scheduler.counts
    assert counts.checked == counts.steps > 0
    assert counts.displaced >= 50 and counts.demoted >= 50


def test_after_a_push_in_the_middle_of_a_turn_nothing_is_of_the_old_weights(
    engine: tuple[Any, Desk, list[list[int]]], place: Path
) -> None:
    """A step is under way at that moment; what it would bring is dropped."""
    from vllm import SamplingParams

    llm, desk, _ = engine
    prompt = random_tokens(9, 70)
    desk.decide(1, rank=1, level=Level.HIGH)

    def ask(name: str, context: list[int], count: int) -> None:
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=count,
            ignore_eos=True,
            detokenize=False,
            extra_args=Claim(1, 1).extra_args,
        )
        llm.add_request(name, {"prompt_token_ids": context}, parameters)

    def tokens(steps: int = 1000) -> list[int]:
        found: list[int] = []
        while llm.has_unfinished_requests() and steps:
            steps -= 1
            for output in llm.step():
                found = list(output.outputs[0].token_ids)
        return found

    ask("old", prompt, 40)
    old = tokens()
    ask("both", prompt, 40)
    before = tokens(steps=15)
    assert before == old[: len(before)] and 0 < len(before) < 30
    assert len(llm.engine_core.engine_core.batch_queue) == 1
    llm.collective_rpc("load_venus_weights", args=(str(place / "pushed" / "model.safetensors"),))
    assert llm.reset_prefix_cache(reset_running_requests=True)
    both = tokens()
    ask("new", prompt + before, 40 - len(before))
    assert both == before + tokens() != old
