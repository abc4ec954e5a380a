"""Our order of eviction under vLLM's own offloading manager, connector and scheduler.

vLLM's workers copy to host memory on GPUs only. Here their place is taken by books of what each
block of the GPU and each chunk of the host would hold; all that decides is vLLM's and ours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.random_model import VOCABULARY, random_model
from venusrl.engine.host_tier import PriorityCachePolicy
from venusrl.engine.server import engine_args
from venusrl.engine.shared_table import CLAIM_KEYS, DECISION, NOBODY, SharedTable
from venusrl.schedule.snapshot import Level

pytestmark = [pytest.mark.rl, pytest.mark.timeout(300)]

BLOCK, GPU_BLOCKS, HOST_CHUNKS, CONTEXT = 16, 25, 30, 320
PAGE_BYTES = 8192


@dataclass
class Machine:
    """Our scheduler with vLLM's connector. The test computes, samples, and copies."""

    scheduler: Any
    table: SharedTable
    rows: np.ndarray
    hasher: Any
    gpu: dict[int, bytes] = field(default_factory=dict)  # by block: the hash of what it holds
    host: dict[int, bytes] = field(default_factory=dict)  # by chunk
    loaded: int = 0  # chunks
    stored: int = 0
    finished: dict[str, list[int]] = field(default_factory=dict)

    @property
    def policy(self) -> PriorityCachePolicy:
        policy = self.scheduler.host_tier
        assert isinstance(policy, PriorityCachePolicy)
        return policy

    def ask(self, number: int, context: list[int], generate: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        parameters = SamplingParams(
            max_tokens=generate,
            ignore_eos=True,
            extra_args=dict(zip(CLAIM_KEYS, (number, number), strict=True)),
        )
        name = f"{number}:{len(context)}"
        self.scheduler.add_request(
            Request(name, context, parameters, None, block_hasher=self.hasher)
        )

    def step(self) -> None:
        """One step. What a block holds must be what its request takes it for."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output = self.scheduler.schedule()
        meta = output.kv_connector_metadata
        names = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name in names:
            request = self.scheduler.requests[name]
            blocks = self.scheduler.kv_cache_manager.get_block_ids(name)[0]
            after = request.num_computed_tokens
            before = after - output.num_scheduled_tokens[name]
            for at, value in enumerate(request.block_hashes[: after // BLOCK]):
                if at < before // BLOCK:
                    assert self.gpu[blocks[at]] == value, f"{name} has a wrong block at {at}"
                self.gpu[blocks[at]] = value
            sampled.append([2 + after % 7] if after == request.num_tokens else [])
        done = OffloadingWorkerMetadata()
        for number, job in meta.store_jobs.items():
            pairs = zip(job.src_spec.block_ids, job.dst_spec.block_ids, strict=True)
            self.host |= {int(chunk): self.gpu[int(block)] for block, chunk in pairs}
            self.stored += len(job.src_spec.block_ids)
            done.mark_completed(number)
        for number, job in meta.load_jobs.items():
            pairs = zip(job.src_spec.block_ids, job.dst_spec.block_ids, strict=True)
            self.gpu |= {int(block): self.host[int(chunk)] for chunk, block in pairs}
            self.loaded += len(job.src_spec.block_ids)
            done.mark_completed(number)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=KVConnectorOutput(
                finished_recving={job.req_id for job in meta.load_jobs.values()},
                kv_connector_worker_meta=done,
            ),
        )
        requests = dict(self.scheduler.requests)
        self.scheduler.update_from_output(output, result)
        for name in names:
            if name not in self.scheduler.requests:
                self.finished[name] = list(requests[name].all_token_ids)

    def turn(self, number: int, context: list[int], generate: int) -> list[int]:
        """One turn, by itself, and the steps in which the last of it is copied."""
        self.ask(number, context, generate)
        while self.scheduler.has_requests():
            self.step()
        return self.finished.pop(f"{number}:{len(context)}")

    def decide(self, number: int, *, rank: int, level: Level) -> None:
        self.rows[number] = (number, 0, rank, 1, int(level))
        self.table.publish(self.rows)

    def in_host(self, tokens: list[int]) -> int:
        """Blocks of a context that host memory holds, from its beginning."""
        from vllm import SamplingParams
        from vllm.v1.kv_offload.base import make_offload_key
        from vllm.v1.request import Request

        request = Request("?", tokens, SamplingParams(max_tokens=1), None, block_hasher=self.hasher)
        for at, value in enumerate(request.block_hashes):
            if self.policy.get(make_offload_key(value, 0)) is None:
                return at
        return len(request.block_hashes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("host") / "model"
    random_model(place, 3, tied=False, positions=CONTEXT)
    return place


def arguments(model: Path, scheduler: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "model": str(model),
        "max_model_len": CONTEXT,
        "max_concurrency": 8,
        "kv_cache_bytes": 1 << 28,
        "kv_blocks": GPU_BLOCKS,
        "block_tokens": BLOCK,
        "step_tokens": CONTEXT,
        "seed": 0,
        "host_cache_bytes": HOST_CHUNKS * PAGE_BYTES,
        "scheduler": scheduler,
    }


@pytest.fixture
def machine(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    from vllm.config import set_current_vllm_config
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheTensor,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    from venusrl.engine.scheduler import PriorityScheduler

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    table = SharedTable.create(tmp_path / "table", DECISION, 16)
    options = {"table": str(table.path), "check_every": 1}
    config = engine_args(arguments(model, scheduler=options)).create_engine_config()
    config.cache_config.num_gpu_blocks = GPU_BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    size = GPU_BLOCKS * PAGE_BYTES
    cache = KVCacheConfig(
        num_blocks=GPU_BLOCKS,
        kv_cache_tensors=[KVCacheTensor(size, ["layer"], size, PAGE_BYTES)],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    init_none_hash(sha256)
    with set_current_vllm_config(config):
        scheduler = PriorityScheduler(
            config,
            cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
    rows = np.zeros(16, DECISION)
    rows["trajectory"] = NOBODY
    yield Machine(scheduler, table, rows, get_request_block_hasher(BLOCK, sha256))
    scheduler.shutdown()


def tokens(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(2, VOCABULARY) for _ in range(count)]


def test_vllm_loads_our_order_by_name_and_the_scheduler_finds_it(machine: Machine) -> None:
    assert machine.policy.cache_capacity == HOST_CHUNKS
    assert machine.policy is machine.scheduler.connector.connector_scheduler.manager._policy


def test_a_context_that_left_the_gpu_comes_back_from_host_memory(machine: Machine) -> None:
    machine.decide(1, rank=1, level=Level.LOW)
    machine.decide(2, rank=2, level=Level.LOW)
    first = machine.turn(1, tokens(1, 160), 20)
    machine.turn(2, tokens(2, CONTEXT - 20), 10)  # takes nearly all of the GPU
    cached = machine.scheduler.residency.cached_blocks(1)
    assert cached < 11 and machine.in_host(first) == 11
    machine.turn(1, first + tokens(3, 20), 4)
    assert machine.loaded == 11 - cached


def test_what_leaves_host_memory_is_what_the_table_says(machine: Machine) -> None:
    """Three contexts fill it, the GPU holds the last; then the ranks change, and a fourth comes."""
    ranked = {1: 1, 2: 3, 3: 2}
    contexts = {}
    for number, rank in ranked.items():
        machine.decide(number, rank=rank, level=Level.LOW)
    for number in ranked:
        contexts[number] = machine.turn(number, tokens(number, 150), 11)
    assert {n: machine.in_host(c) for n, c in contexts.items()} == {1: 10, 2: 10, 3: 10}
    machine.decide(1, rank=9, level=Level.LOW)
    machine.decide(4, rank=0, level=Level.LOW)
    fourth = machine.turn(4, tokens(4, 90), 7)
    assert machine.in_host(fourth) == 6
    held = {n: machine.in_host(c) for n, c in contexts.items()}
    on_gpu = {n: machine.scheduler.residency.cached_blocks(n) for n in contexts}
    assert on_gpu[3] == 10, "it lies in both, and goes first"
    assert held == {1: 10, 2: 10, 3: 4}
    machine.rows[2]["trajectory"] = NOBODY  # over: goes before all that is of use
    machine.table.publish(machine.rows)
    machine.decide(5, rank=0, level=Level.LOW)
    machine.turn(5, tokens(5, 90), 7)
    assert machine.in_host(contexts[2]) == 4


def test_new_weights_empty_host_memory(machine: Machine) -> None:
    machine.decide(1, rank=1, level=Level.LOW)
    context = machine.turn(1, tokens(1, 100), 4)
    assert machine.in_host(context) == 6
    assert machine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert machine.in_host(context) == 0 and len(machine.policy.order) == 0
    machine.turn(1, context, 4)
    assert machine.loaded == 0


def test_no_turn_ever_gets_a_wrong_block_whatever_is_displaced_and_evicted(
    machine: Machine,
) -> None:
    """Twelve trajectories in groups of four, with more context than GPU and host memory together.
    Ranks and levels change all the time; every block that is used is compared (`Machine.step`)."""
    chance = random.Random(7)
    contexts = {n: tokens(n // 4, 44) + tokens(100 + n, 20) for n in range(12)}
    left = dict.fromkeys(contexts, 6)
    under_way: set[int] = set()
    while left:
        for number in contexts:
            if number in left:
                level = chance.choice([Level.LOW, Level.HIGH])
                rank, critical = chance.randrange(99), chance.random() < 0.3
                machine.rows[number] = (number, 0, rank, critical, int(level))
            else:
                machine.rows[number]["trajectory"] = NOBODY
        machine.table.publish(machine.rows)
        for number in sorted(left.keys() - under_way):
            if chance.random() < 0.5:
                machine.ask(number, contexts[number], chance.randrange(6, 16))
                under_way.add(number)
        machine.step()
        for name, context in machine.finished.items():
            number = int(name.partition(":")[0])
            contexts[number] = context + tokens(len(context), chance.randrange(4, 14))
            under_way.discard(number)
            left[number] -= 1
            if not left[number]:
                del left[number]
        machine.finished.clear()
    while machine.scheduler.has_requests():
        machine.step()
    counts = machine.scheduler.counts
    assert counts.checked == counts.steps > 0
    assert machine.loaded > 50 and machine.stored > 2 * HOST_CHUNKS
    assert counts.displaced > 0 and counts.demoted > 0
    assert not machine.policy._announced
    assert all(chunk.ref_cnt == 0 for chunk in machine.policy._chunks.values())


def test_without_our_scheduler_the_order_is_that_of_vllm(model: Path) -> None:
    transfer = engine_args(arguments(model, scheduler=None)).kv_transfer_config
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
