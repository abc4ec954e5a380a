"""What vLLM's model runner does with the steps of its scheduler, without a model.

It keeps what each block of the GPU holds: at every position a digest of all tokens up to it, and
of the version of the weights. Whatever is computed reads all before it through the block table, as
attention does; what is not what its request takes it for ends the test. The next token is a
function of the digest.

Like a GPU it runs behind: a step is computed once its result is asked for, or a copy waits for it.
Copies of the offloading connector run beside the steps, each as early or as late as it may.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.support.random_model import VOCABULARY


@dataclass
class _Request:
    tokens: list[int]
    prompt: int
    blocks: list[int]

    def digests(self, count: int) -> list[int]:
        """Of the first `count` tokens, by position."""
        found, last = [], 0
        for token in self.tokens[:count]:
            last = hash((last, token))
            found.append(last)
        return found


@dataclass(eq=False)
class Step:
    """One that has been submitted."""

    output: Any
    begun: dict[str, list[int]]  # tokens of the requests that are new to the runner
    sampled: dict[str, list[int]] = field(default_factory=dict)
    copied: list[int] = field(default_factory=list)  # jobs that had ended
    read: set[str] = field(default_factory=set)  # requests for which one had read


@dataclass(eq=False)
class _Copy:
    number: int
    job: Any
    after: int = 0  # so many steps are computed before it
    made: bool = False


class ModelRunner:
    """`v2`: vLLM's second runner, to which what was preempted is new."""

    def __init__(self, block: int, *, asynchronous: bool = False, v2: bool = False) -> None:
        self._block, self._asynchronous, self._v2 = block, asynchronous, v2
        self._chance = random.Random(block)
        self._requests: dict[str, _Request] = {}
        self._batch: set[str] = set()  # requests of the last step
        self._submitted: deque[Step] = deque()  # and not computed
        self._computed = 0
        self._stores: list[_Copy] = []  # begin with the next step, so after this one
        self._storing: deque[_Copy] = deque()
        self._loading: deque[_Copy] = deque()
        self._gpu: dict[int, list[int]] = {}  # by block
        self._host: dict[int, list[int]] = {}  # by chunk
        self.version = 0  # of the weights
        self.loaded = 0  # chunks
        self.stored = 0

    def submit(self, output: Any) -> Step:
        """One more step, to be computed after all that were submitted before."""
        begun = {
            new.req_id: list(new.prefill_token_ids or new.prompt_token_ids)
            for new in output.scheduled_new_reqs
        }
        step = Step(output, begun)
        if output.kv_connector_metadata is not None:
            self._begin_copies(output.kv_connector_metadata)
            self._end_copies(step)
        self._submitted.append(step)
        return step

    def result(self, step: Step) -> Any:
        """vLLM's output for a step."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        while step in self._submitted:
            self._compute(self._submitted.popleft())
        done = OffloadingWorkerMetadata()
        for number in step.copied:
            done.mark_completed(number)
        return ModelRunnerOutput(
            req_ids=list(step.sampled),
            req_id_to_index={name: at for at, name in enumerate(step.sampled)},
            sampled_token_ids=list(step.sampled.values()),
            kv_connector_output=KVConnectorOutput(
                finished_recving=step.read, kv_connector_worker_meta=done
            ),
        )

    def synchronize(self) -> None:
        """Computes all that has been submitted."""
        while self._submitted:
            self._compute(self._submitted.popleft())

    # --- steps --------------------------------------------------------------------------------

    def _compute(self, step: Step) -> None:
        starts = self._begin(step)
        counts = step.output.num_scheduled_tokens
        assert starts.keys() == counts.keys()
        ends = {name: starts[name] + count for name, count in counts.items()}
        # In each layer all of a step is written before anything of it reads.
        for name, end in ends.items():
            request = self._requests[name]
            assert end <= len(request.tokens), f"{name} computes token {end}, which is not known"
            for at, value in enumerate(self._values(request, end)[starts[name] :], starts[name]):
                block = self._gpu.setdefault(request.blocks[at // self._block], [0] * self._block)
                block[at % self._block] = value
        for name, end in ends.items():
            request = self._requests[name]
            found = [v for block in request.blocks for v in self._gpu.get(block, ())][:end]
            wrong = [a != b for a, b in zip(found, self._values(request, end), strict=True)]
            assert not any(wrong), f"{name} reads what is wrong at {wrong.index(True)} of {end}"
            step.sampled[name] = []
            if end == len(request.tokens):
                step.sampled[name].append(2 + request.digests(end)[-1] % (VOCABULARY - 2))
                request.tokens += step.sampled[name]
        self._batch = set(counts)
        self._computed += 1

    def _begin(self, step: Step) -> dict[str, int]:
        """Takes over what the scheduler says; returns where each request goes on."""
        output, cached = step.output, step.output.scheduled_cached_reqs
        preempted = output.preempted_req_ids if self._v2 else set()
        for name in output.finished_req_ids | preempted:
            self._requests.pop(name, None)
        starts = {}
        for new in output.scheduled_new_reqs:
            request = _Request(
                step.begun[new.req_id], len(new.prompt_token_ids), [*new.block_ids[0]]
            )
            self._requests[new.req_id] = request
            starts[new.req_id] = new.num_computed_tokens
        for at, name in enumerate(cached.req_ids):
            request = self._requests[name]
            starts[name] = cached.num_computed_tokens[at]
            blocks = cached.new_block_ids[at]
            resumed = name in cached.resumed_req_ids
            if resumed:
                request.blocks = []
            request.blocks += blocks[0] if blocks else []
            if not self._v2:
                produced = cached.num_output_tokens[at]
                del request.tokens[request.prompt + produced :]
                if self._asynchronous and produced and (resumed or name not in self._batch):
                    request.tokens[request.prompt :] = cached.all_token_ids[name][-produced:]
        return starts

    def _values(self, request: _Request, count: int) -> list[int]:
        return [hash((self.version, digest)) for digest in request.digests(count)]

    # --- copies -------------------------------------------------------------------------------

    def _begin_copies(self, metadata: Any) -> None:
        awaited = metadata.jobs_to_flush or set()
        for number in awaited & metadata.store_jobs.keys():
            self._stores.append(_Copy(number, metadata.store_jobs.pop(number)))
        for copy in self._stores:
            copy.after = self._computed + len(self._submitted)
        self._storing += self._stores
        self._stores = [_Copy(number, job) for number, job in metadata.store_jobs.items()]
        self._wait(awaited)
        for number, job in metadata.load_jobs.items():
            self._loading.append(_Copy(number, job))
            if self._chance.random() < 0.5:
                self._wait({number})  # before the steps that were submitted earlier

    def _wait(self, numbers: set[int]) -> None:
        """Makes copies, and all that come before them."""
        for copies in (self._storing, self._loading):
            last = max((at for at, copy in enumerate(copies) if copy.number in numbers), default=-1)
            for copy in list(copies)[: last + 1]:
                self._make(copy)

    def _end_copies(self, step: Step) -> None:
        """Some end, in their order."""
        for copies in (self._storing, self._loading):
            while copies and copies[0].after <= self._computed and self._chance.random() < 0.6:
                self._make(copies[0])
                step.copied.append(copies[0].number)
                if copies is self._loading:
                    step.read.add(copies[0].job.req_id)
                copies.popleft()

    def _make(self, copy: _Copy) -> None:
        if copy.made:
            return
        copy.made = True
        while self._computed < copy.after:
            self._compute(self._submitted.popleft())
        source, target = copy.job.src_spec.block_ids, copy.job.dst_spec.block_ids
        reads = copy in self._loading
        for a, b in zip(source.tolist(), target.tolist(), strict=True):
            if reads:
                self._gpu[b] = [*self._host[a]]
            else:
                self._host[b] = [*self._gpu[a]]
        self.loaded += len(source) * reads
        self.stored += len(source) * (not reads)
