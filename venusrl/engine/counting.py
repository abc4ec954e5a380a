"""How much an engine computes again: counts of any vLLM scheduler, ours or its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Prefill:
    """Since the engine started."""

    admitted: int = 0  # requests, those that come back after a preemption too
    asked_tokens: int = 0  # what they had in context then
    hit_tokens: int = 0  # of it, found in the cache
    preempted: int = 0


def count_prefill(scheduler: Any) -> Prefill:
    """Counts from now on. Wraps two methods of the scheduler."""
    from vllm.v1.request import RequestStatus

    counts = Prefill()
    cache = scheduler.kv_cache_manager
    allocate, preempt = cache.allocate_slots, scheduler._preempt_request

    def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
        waits = request.status != RequestStatus.RUNNING
        found = allocate(request, *args, **kwargs)
        if waits and found is not None:
            counts.admitted += 1
            counts.asked_tokens += request.num_tokens
            counts.hit_tokens += kwargs.get("num_new_computed_tokens", 0)
        return found

    def preempt_request(*args: Any, **kwargs: Any) -> None:
        counts.preempted += 1
        preempt(*args, **kwargs)

    cache.allocate_slots = allocate_slots
    scheduler._preempt_request = preempt_request
    return counts
