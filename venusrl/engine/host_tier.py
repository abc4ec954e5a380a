"""The host tier: attention state in host memory, through vLLM's offloading connector.

vLLM copies: what a GPU computes is written to host memory at once, and what a turn asks for and the
GPU lacks is read from there. We decide what leaves host memory (`host_order.py`): vLLM loads
`PriorityCachePolicy` by name (`connector_config`), and the scheduler, in the same process, tells it
what each trajectory is worth and what the GPU holds (`host_tier_of`). Whose a chunk is it learns
from the request that stores or uses it, which carries the number of its trajectory (`label`).

Rests on interfaces that vLLM calls experimental; tests/rl/test_host_tier.py runs them. Copying
needs a GPU: on CPU vLLM refuses to start with a host tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus
from vllm.v1.request import RequestStatus

from venusrl.engine.host_order import EngineView, HostOrder
from venusrl.engine.shared_table import NOBODY, Claim

if TYPE_CHECKING:
    from venusrl.engine.scheduler import PriorityMixin

_TRAJECTORY = "venus_trajectory"  # in a request's kv_transfer_params


def connector_config(host_bytes: int, *, ours: bool) -> dict[str, Any]:
    """The fields of vLLM's KVTransferConfig for so much host memory, with our order or vLLM's
    own (least recently used)."""
    # What a turn generates is context of the next; vLLM would leave it out.
    extra: dict[str, Any] = {"cpu_bytes_to_use": host_bytes, "offload_prompt_only": False}
    if ours:
        extra["eviction_policy"] = PriorityCachePolicy.__name__
        extra["cache_policy_module_path"] = __name__
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


class PriorityCachePolicy(CachePolicy):
    """Keeps vLLM's status of each chunk, and lets them go in the order of `host_order.py`."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.order = HostOrder()
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        # What is about to be stored: vLLM tells for whom before it inserts.
        self._announced: dict[OffloadKey, tuple[int, int]] = {}

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        self._chunks[key] = chunk
        self.order.add(key, *self._announced.pop(key, (0, NOBODY)))

    def remove(self, key: OffloadKey) -> None:
        del self._chunks[key]
        self.order.remove(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The trajectory of the request uses what is there of `keys`."""
        owner = _owner(req_context)
        for key in keys:
            if key in self._chunks:
                self.order.claim(key, _position(req_context, key), owner)

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        owner = _owner(req_context)
        self._announced.update((key, (_position(req_context, key), owner)) for key in keys)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for keys in key_groups:
            self.touch(keys, req_context)
            for key in keys:
                self._announced.pop(key, None)  # of a store that found no room

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        def stays(key: Any) -> bool:
            # Only 0 is idle: less is being written, more is being read.
            return key in protected or self._chunks[key].ref_cnt != 0

        found: Any = self.order.first(n, stays)
        if found is None:
            return None
        gone = [(key, self._chunks[key]) for key in found]
        for key in found:
            self.remove(key)
        return gone

    def clear(self) -> None:
        self._chunks.clear()
        self._announced.clear()
        self.order.clear()

    def faults(self) -> Iterator[str]:
        """What does not agree; walks all chunks."""
        if len(self._chunks) > self.cache_capacity:
            yield f"{len(self._chunks)} chunks in host memory, and room for {self.cache_capacity}"
        if len(self._chunks) != len(self.order) or any(k not in self.order for k in self._chunks):
            yield "the order of host memory has other chunks than there are"
        if len({chunk.chunk_id for chunk in self._chunks.values()}) != len(self._chunks):
            yield "a place in host memory is used twice"


def host_tier_of(scheduler: PriorityMixin) -> PriorityCachePolicy | None:
    """The policy of the engine's host tier, which knows the scheduler from now on; None where the
    engine has no such tier, or leaves its order to vLLM."""
    connector: Any = scheduler.connector
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    policy = getattr(manager, "_policy", None)
    if not isinstance(policy, PriorityCachePolicy):
        return None
    cached: Any = scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    policy.order.engine = EngineView(
        step=lambda: scheduler.counts.steps,
        level=scheduler.level,
        priority=scheduler.trajectory_priority,
        # vLLM names chunks of a block as it names blocks.
        on_gpu=lambda key: cached.get_one_block(key) is not None,
    )
    return policy


def label(request: Any, claim: Claim | None) -> None:
    """Writes on a request whose it is, for the tier to read."""
    number = NOBODY if claim is None else claim.trajectory
    request.kv_transfer_params = {**(request.kv_transfer_params or {}), _TRAJECTORY: number}


def settle(scheduler: Any, step: Callable[[], object]) -> None:
    """Lets all copies end; then nothing keeps vLLM from forgetting what it has cached.

    `step` advances the engine by one step: they schedule nothing meanwhile. vLLM tells of copies
    only there. Any scheduler of vLLM's will do, also one without a host tier."""
    if scheduler.connector is None:
        return
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    # Where steps are scheduled ahead, vLLM keeps blocks until those under way have ended.
    while (
        scheduler.connector.has_pending_push_work()
        or scheduler.sched_step_seq > scheduler.processed_step_seq
    ):
        step()
    scheduler.set_pause_state(PauseState.UNPAUSED)
    # Who has read and not begun gives it back, and is in the place that it had before.
    holding = set(scheduler.kv_holding_waiting)
    for request in holding:
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            scheduler._handle_blocked_waiting_request(request)
        scheduler.kv_cache_manager.free(request)
        scheduler._inflight_prefills.discard(request)
        request.num_computed_tokens = 0
        scheduler.waiting.add_request(request)
    scheduler.kv_holding_waiting.remove_requests(holding)
    scheduler.deferred_waiting -= holding


def _owner(req_context: ReqContext) -> int:
    number: int = (req_context.kv_transfer_params or {}).get(_TRAJECTORY, NOBODY)
    return number


def _position(req_context: ReqContext, key: OffloadKey) -> int:
    return req_context.get_offload_key_position(key) or 0
