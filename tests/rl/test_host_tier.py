"""Our order of eviction under vLLM's own offloading manager, connector and scheduler.

vLLM's workers copy to host memory on GPUs only. Here their place is taken by books of what each
block of the GPU and each chunk of the host would hold (`tests/support/model_runner.py`); all that
decides is vLLM's and ours, also where it is asked for a step while another is under way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.desk import Desk
from tests.support.model_runner import ModelRunner
from tests.support.random_model import random_tokens
from tests.support.vllm_scheduler import CONTEXT, PAGE_BYTES, Core, configuration
from venusrl.engine.host_tier import PriorityCachePolicy
from venusrl.engine.scheduler import AsyncPriorityScheduler, PriorityScheduler
from venusrl.engine.server import engine_args
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

GPU_BLOCKS, HOST_CHUNKS = 25, 30


@dataclass
class Machine:
    core: Core
    desk: Desk

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def runner(self) -> ModelRunner:
        return self.core.runner

    @property
    def policy(self) -> PriorityCachePolicy:
        policy = self.scheduler.host_tier
        assert isinstance(policy, PriorityCachePolicy)
        return policy

    def turn(self, number: int, context: list[int], generate: int) -> list[int]:
        """One turn, by itself, and the steps in which the last of it is copied."""
        name = f"{number}:{len(context)}"
        self.core.ask(name, number, context, generate)
        self.core.finish()
        return context + self.core.take_finished()[name]

    def in_host(self, tokens: list[int]) -> int:
        """Blocks of a context that host memory holds, from its beginning."""
        from vllm import SamplingParams
        from vllm.v1.kv_offload.base import make_offload_key
        from vllm.v1.request import Request

        hasher = self.core.hasher
        request = Request("?", tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        for at, value in enumerate(request.block_hashes):
            if self.policy.get(make_offload_key(value, 0)) is None:
                return at
        return len(request.block_hashes)


@pytest.fixture(params=[1, 2], ids=["synchronous", "asynchronous"])
def machine(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Machine]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    desk = Desk.open(tmp_path / "table", 16)
    options = {"table": str(desk.table.path), "check_every": 1, "wait_factor": 0.0}
    given = configuration(options, blocks=GPU_BLOCKS, host_chunks=HOST_CHUNKS)
    ours = PriorityScheduler if request.param == 1 else AsyncPriorityScheduler
    core = Core.start(ours, model, given, depth=request.param)
    yield Machine(core, desk)
    core.scheduler.shutdown()


def test_vllm_loads_our_order_by_name_and_the_scheduler_finds_it(machine: Machine) -> None:
    assert machine.policy.cache_capacity == HOST_CHUNKS
    assert machine.policy is machine.scheduler.connector.connector_scheduler.manager._policy


def test_a_context_that_left_the_gpu_comes_back_from_host_memory(machine: Machine) -> None:
    machine.desk.decide(1, rank=1, level=Level.LOW)
    machine.desk.decide(2, rank=2, level=Level.LOW)
    first = machine.turn(1, random_tokens(1, 160), 20)
    machine.turn(2, random_tokens(2, CONTEXT - 20), 10)  # takes nearly all of the GPU
    cached = machine.scheduler.residency.cached_blocks(1)
    assert cached < 11 and machine.in_host(first) == 11
    machine.turn(1, first + random_tokens(3, 20), 4)
    assert machine.runner.loaded == 11 - cached


def test_what_leaves_host_memory_is_what_the_table_says(machine: Machine) -> None:
    """Three contexts fill it, the GPU holds the last; then the ranks change, and a fourth comes."""
    ranked = {1: 1, 2: 3, 3: 2}
    contexts = {}
    for number, rank in ranked.items():
        machine.desk.decide(number, rank=rank, level=Level.LOW)
    for number in ranked:
        contexts[number] = machine.turn(number, random_tokens(number, 150), 11)
    assert {n: machine.in_host(c) for n, c in contexts.items()} == {1: 10, 2: 10, 3: 10}
    machine.desk.decide(1, rank=9, level=Level.LOW)
    machine.desk.decide(4, rank=0, level=Level.LOW)
    fourth = machine.turn(4, random_tokens(4, 90), 7)
    assert machine.in_host(fourth) == 6
    held = {n: machine.in_host(c) for n, c in contexts.items()}
    on_gpu = {n: machine.scheduler.residency.cached_blocks(n) for n in contexts}
    assert on_gpu[3] == 10, "it lies in both, and goes first"
    assert held == {1: 10, 2: 10, 3: 4}
    machine.desk.leave(2)  # over: goes before all that is of use
    machine.desk.decide(5, rank=0, level=Level.LOW)
    machine.turn(5, random_tokens(5, 90), 7)
    assert machine.in_host(contexts[2]) == 4


def test_new_weights_empty_host_memory(machine: Machine) -> None:
    machine.desk.decide(1, rank=1, level=Level.LOW)
    context = machine.turn(1, random_tokens(1, 100), 4)
    assert machine.in_host(context) == 6
    machine.core.push()
    assert machine.in_host(context) == 0 and len(machine.policy.order) == 0
    machine.turn(1, context, 4)
    assert machine.runner.loaded == 0


def test_who_has_read_its_context_begins_beside_those_who_run(machine: Machine) -> None:
    """It holds what it has read, and needs room for the rest only."""
    for number in (1, 2, 3):
        machine.desk.decide(number, rank=number, level=Level.LOW)
    first = machine.turn(1, random_tokens(1, 160), 20)
    machine.turn(2, random_tokens(2, CONTEXT - 20), 10)
    core, loaded = machine.core, machine.runner.loaded
    core.ask("long", 3, random_tokens(3, 100), 60)
    core.step()
    core.ask("again", 1, first + random_tokens(4, 10), 4)
    finished: list[str] = []
    while not finished:
        core.step()
        finished += core.take_finished()
    assert finished == ["again"] and machine.runner.loaded > loaded
    core.finish()


def test_new_weights_wait_for_what_is_being_read(machine: Machine) -> None:
    """vLLM cannot forget blocks that a copy fills, nor those of who has read and does not run."""
    machine.desk.decide(1, rank=1, level=Level.LOW)
    machine.desk.decide(2, rank=2, level=Level.LOW)
    first = machine.turn(1, random_tokens(1, 160), 20)
    machine.turn(2, random_tokens(2, CONTEXT - 20), 10)
    for steps in range(1, 4):
        name = f"again {steps}"
        machine.core.ask(name, 1, first + random_tokens(3, 20), 4)
        for _ in range(steps):
            machine.core.step()
        machine.core.push()
        assert len(machine.policy.order) == 0 and not machine.scheduler.kv_holding_waiting
        machine.core.finish()
        assert len(machine.core.take_finished()[name]) == 4
        machine.turn(2, random_tokens(2, CONTEXT - 20), 10)
    assert machine.runner.loaded > 0


def test_no_turn_ever_gets_a_wrong_block_whatever_is_displaced_and_evicted(
    machine: Machine,
) -> None:
    """Twelve trajectories in groups of four, with more context than GPU and host memory together.
    Ranks and levels change all the time; every block that is read is compared."""
    core = machine.core
    chance = random.Random(7)
    contexts = {n: random_tokens(n // 4, 44) + random_tokens(100 + n, 20) for n in range(12)}
    left = dict.fromkeys(contexts, 6)
    under_way: set[int] = set()
    while left:
        machine.desk.shuffle(left, chance)
        for number in sorted(left.keys() - under_way):
            if chance.random() < 0.5:
                name = f"{number}:{left[number]}"
                core.ask(name, number, contexts[number], chance.randrange(6, 16))
                under_way.add(number)
        core.step()
        for name, produced in core.take_finished().items():
            number = int(name.partition(":")[0])
            contexts[number] += produced
            contexts[number] += random_tokens(len(contexts[number]), chance.randrange(4, 14))
            under_way.discard(number)
            left[number] -= 1
            if not left[number]:
                del left[number]
    core.finish()
    counts = machine.scheduler.counts
    assert counts.checked == counts.steps > 0
    assert machine.runner.loaded > 50 and machine.runner.stored > 2 * HOST_CHUNKS
    assert counts.displaced > 0 and counts.demoted > 0
    assert not machine.policy._announced
    assert all(chunk.ref_cnt == 0 for chunk in machine.policy._chunks.values())


def test_without_our_scheduler_the_order_is_that_of_vllm(model: Path) -> None:
    given = configuration(None, blocks=GPU_BLOCKS, host_chunks=HOST_CHUNKS)
    transfer = engine_args(str(model), given).kv_transfer_config
    assert transfer.kv_connector_extra_config == {
        "cpu_bytes_to_use": HOST_CHUNKS * PAGE_BYTES,
        "offload_prompt_only": False,
    }


def test_copying_is_refused_on_cpu(machine: Machine) -> None:
    """So no test here copies anything. Once this fails, one can."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config,
    )
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    scheduler = machine.scheduler
    config = build_offloading_config(scheduler.vllm_config, scheduler.kv_cache_config)
    nothing: Any = None
    with pytest.raises(Exception, match="only supported on CUDA"):
        CPUOffloadingSpec(config).get_worker(nothing)
