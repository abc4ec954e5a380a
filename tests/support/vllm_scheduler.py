"""vLLM's scheduler without an engine: what its engine core does with it, and a runner's books."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.support.model_runner import ModelRunner, Step
from venusrl.engine import EngineConfig
from venusrl.engine.host_tier import settle
from venusrl.engine.server import engine_args
from venusrl.engine.shared_table import Claim

BLOCK, CONTEXT = 16, 320
PAGE_BYTES = 8192
NOTHING = 0  # a token that nobody generates


def configuration(
    options: Mapping[str, Any] | None, *, blocks: int, host_chunks: int = 0
) -> EngineConfig:
    return EngineConfig(
        max_model_len=CONTEXT,
        max_concurrency=8,
        kv_cache_bytes=1 << 28,
        kv_blocks=blocks,
        block_tokens=BLOCK,
        step_tokens=CONTEXT,
        host_cache_bytes=host_chunks * PAGE_BYTES,
        scheduler=options,
    )


@dataclass
class Core:
    """An engine core. With `depth` 2 it schedules a step while the one before is under way, as
    vLLM's does for asynchronous scheduling."""

    scheduler: Any
    runner: ModelRunner
    hasher: Any
    depth: int
    stale: int = 0  # requests that were preempted while a step computed them
    _produced: dict[str, list[int]] = field(default_factory=dict)  # by request
    _finished: list[str] = field(default_factory=list)
    _under_way: deque[Step] = field(default_factory=deque)

    @classmethod
    def start(
        cls,
        scheduler_class: Any,
        model: Path,
        given: EngineConfig,
        *,
        depth: int,
        v2: bool = False,
    ) -> Core:
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

        blocks = given.kv_blocks
        assert blocks is not None
        config = engine_args(str(model), given).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        # vLLM's platform for CPUs has switched it off.
        config.scheduler_config.async_scheduling = depth > 1
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        size = blocks * PAGE_BYTES
        cache = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[KVCacheTensor(size, ["layer"], size, PAGE_BYTES)],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        init_none_hash(sha256)
        with set_current_vllm_config(config):
            scheduler = scheduler_class(
                config,
                cache,
                structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK,
                hash_block_size=BLOCK,
            )
        scheduler.use_v2_model_runner = v2
        assert config.max_concurrent_batches == depth
        runner = ModelRunner(BLOCK, asynchronous=depth > 1, v2=v2)
        return cls(scheduler, runner, get_request_block_hasher(BLOCK, sha256), depth)

    def ask(
        self, name: str, number: int, tokens: list[int], generate: int, *, stop: int = NOTHING
    ) -> None:
        """A turn of a trajectory, which has the row of its number."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        parameters = SamplingParams(
            max_tokens=generate,
            stop_token_ids=[stop],
            ignore_eos=True,
            extra_args=Claim(number, number).extra_args,
        )
        self.scheduler.add_request(
            Request(name, [*tokens], parameters, None, block_hasher=self.hasher)
        )
        self._produced[name] = []

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """EngineCore.step_with_batch_queue, which with a queue of one is EngineCore.step."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.stale += sum(
                self.scheduler.requests[name].num_stale_output_tokens > 0
                for name in output.preempted_req_ids & self.scheduler.requests.keys()
            )
            self._under_way.append(self.runner.submit(output))
            more = output.total_num_scheduled_tokens or self.scheduler.has_requests()
            if len(self._under_way) < self.depth and more:
                return
        if not self._under_way:
            return
        step = self._under_way.popleft()
        found = self.scheduler.update_from_output(step.output, self.runner.result(step))
        for outputs in found.values():
            for one in outputs.outputs:
                self._produced[one.request_id] += one.new_token_ids
                if one.finish_reason is not None:
                    self._finished.append(one.request_id)

    def take_finished(self) -> dict[str, list[int]]:
        """What was generated by the requests that have finished since the last call."""
        finished, self._finished = self._finished, []
        return {name: self._produced.pop(name) for name in finished}

    def finish(self) -> None:
        """All steps that are left, also those in which the last of it is copied."""
        while self._under_way or self.scheduler.has_requests():
            self.step()

    def push(self) -> None:
        """New weights, between two steps, as the server of an engine pushes them."""
        settle(self.scheduler, self.step)
        self.runner.synchronize()
        self.runner.version += 1
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
