"""What must be true between two steps of the scheduler; checks it and changes nothing.

Switched on by `check_every` (scheduler.py); one check costs some microseconds per block. A
violation ends the engine, which is what is wanted: it is replaced, and a wrong block would be a
wrong answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from venusrl.schedule.snapshot import Level

if TYPE_CHECKING:
    from venusrl.engine.scheduler import PriorityMixin


class InvariantError(AssertionError):
    """The scheduler's books do not agree; names the object and both sides."""


def check(scheduler: PriorityMixin) -> None:
    """InvariantError at the first that does not hold."""
    for fault in faults(scheduler):
        raise InvariantError(f"check the scheduler at step {scheduler.counts.steps}: {fault}")


def faults(scheduler: PriorityMixin) -> Iterator[str]:
    yield from _blocks(scheduler)
    yield from _records(scheduler)
    yield from _queues(scheduler)
    if scheduler.host_tier is not None:
        yield from scheduler.host_tier.faults()


def _blocks(scheduler: PriorityMixin) -> Iterator[str]:
    """Every block is counted once: in the free queue, or by as many as refer to it."""
    pool: Any = scheduler.kv_cache_manager.block_pool
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    holders: Counter[int] = Counter()
    for request_id, blocks in manager.req_to_blocks.items():
        if request_id not in scheduler.requests:
            yield f"request {request_id} is gone and holds {len(blocks)} blocks"
        holders.update(block.block_id for block in blocks)
    for record in scheduler.residency.records.values():
        holders.update(block.block_id for block in record.blocks[: record.pinned])
    for _, blocks in scheduler.deferred_frees:
        holders.update(block.block_id for block in blocks)
    free: set[int] = set()
    queue = pool.free_block_queue
    before, block = queue.fake_free_list_head, queue.fake_free_list_head.next_free_block
    while block is not queue.fake_free_list_tail:
        if block is None or block.prev_free_block is not before or block.block_id in free:
            yield f"the free queue is broken behind block {before.block_id}"
            return
        free.add(block.block_id)
        before, block = block, block.next_free_block
    if len(free) != queue.num_free_blocks:
        yield f"the free queue counts {queue.num_free_blocks} blocks and holds {len(free)}"
    for block in pool.blocks:
        if block.is_null:
            continue
        number = block.block_id
        if block.ref_cnt != holders[number]:
            yield f"block {number} counts {block.ref_cnt} references and has {holders[number]}"
        if (block.ref_cnt == 0) != (number in free):
            yield f"block {number} with {block.ref_cnt} references: free is {number in free}"
        value = block.block_hash
        if value is not None and not pool.cached_block_hash_to_block.contain(value, number):
            yield f"block {number} has a hash by which it cannot be found"


def _records(scheduler: PriorityMixin) -> Iterator[str]:
    """Levels agree with what is pinned; nobody runs and has a record."""
    residency = scheduler.residency
    pinned = sum(record.pinned for record in residency.records.values())
    if pinned != residency.pinned:
        yield f"{residency.pinned} pins are counted, and {pinned} held"
    for trajectory, record in residency.records.items():
        level = scheduler.level(trajectory)
        if level == Level.UNUSED:
            yield f"trajectory {trajectory} is over and has a record"
        if record.pinned and level != Level.HIGH:
            yield f"trajectory {trajectory} has {record.pinned} pins at level {level.name}"
        for block, value in zip(record.blocks[: record.pinned], record.hashes, strict=False):
            if block.block_hash != value:
                yield f"trajectory {trajectory}: pinned block {block.block_id} was overwritten"
    for request in scheduler.running:
        claim = scheduler.claims.get(request.request_id)
        if claim is not None and claim.trajectory in residency.records:
            yield f"trajectory {claim.trajectory} runs and has a record"
    for request_id in scheduler.claims:
        if request_id not in scheduler.requests:
            yield f"request {request_id} is gone and has a claim"


def _queues(scheduler: PriorityMixin) -> Iterator[str]:
    """Priorities are those of the step's snapshot, and the queue is ordered by them."""
    for request in scheduler.requests.values():
        if request.priority != scheduler._priority(request):
            yield f"request {request.request_id} has the priority of an older decision"
    waiting: Any = scheduler.waiting
    heap = waiting._heap
    for at in range(1, len(heap)):
        if heap[at] < heap[(at - 1) // 2]:
            yield f"request {heap[at].request_id} waits behind one of lower priority"
