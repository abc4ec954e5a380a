"""How much an engine computes again, and what its steps cost: of any vLLM scheduler, ours or its
own."""

from __future__ import annotations

import time
from collections import deque
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


# Steps that are remembered: the last ones.
_STEPS = 20_000


class StepLog:
    """What each step computed, and what it took (`simulate.fitted` says what the columns are).
    Wraps the step of an engine and the `schedule` of its scheduler."""

    def __init__(self, llm: Any, scheduler: Any) -> None:
        self._rows: deque[list[float]] = deque(maxlen=_STEPS)
        self._work = [0, 0, 0, 0]
        self._scheduler = scheduler
        schedule, step = scheduler.schedule, llm.step
        ended_cpu_s = time.process_time()

        def logged_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._work = self._composition(output.num_scheduled_tokens)
            return output

        def logged_step() -> Any:
            nonlocal ended_cpu_s
            begun_s, begun_cpu_s = time.monotonic(), time.process_time()
            found = step()
            now_s, now_cpu_s = time.monotonic(), time.process_time()
            # What was done between two steps, such as taking requests, is part of the later one.
            spent = (now_cpu_s - ended_cpu_s, now_cpu_s - begun_cpu_s, now_s - begun_s)
            # Steps in which nobody found room tell nothing of what computing costs.
            if any(self._work):
                self._rows.append([*self._work, *spent])
            ended_cpu_s = now_cpu_s
            return found

        scheduler.schedule, llm.step = logged_schedule, logged_step

    def _composition(self, scheduled: dict[str, int]) -> list[int]:
        decoding = read = prefilled = attended = 0
        for request_id, tokens in scheduled.items():
            after = self._scheduler.requests[request_id].num_computed_tokens
            if tokens == 1:
                decoding += 1
                read += after
            else:
                prefilled += tokens
                attended += tokens * (after - tokens // 2)
        return [decoding, read, prefilled, attended]

    def take(self) -> list[list[float]]:
        """The rows since the last call."""
        rows = list(self._rows)
        self._rows.clear()
        return rows
