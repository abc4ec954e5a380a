"""What computing a token of context costs, measured while an engine works.

Whoever weighs a wait against a computation needs it (scheduler.py, the router), and it differs a
thousandfold between a core and a GPU. Steps that compute much tell it; the largest tell it best, as
a step has costs of its own.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

# The name under which an engine tells it, in nanoseconds.
PREFILL_COST = "prefill_ns_per_token"
# Steps that prefill less than this share of the most that any has are not looked at.
_TELLING = 0.5
# What a step says is worth this much less with each later one.
_FADING = 0.98


class StepCost:
    """Told when a step is scheduled and when it is done; several may be under way."""

    def __init__(self) -> None:
        self._scheduled: deque[tuple[float, int]] = deque(maxlen=64)  # when; prefill
        self._done_s = 0.0
        self._most = 0
        self._seconds = self._tokens = 0.0
        self.empty = False  # the last step computed nothing: those who wait find no room

    @property
    def token_s(self) -> float:
        """Seconds to compute a token of context; 0: not known yet."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def scheduled(self, output: Any) -> None:
        """`output`: vLLM's SchedulerOutput."""
        prefill = sum(tokens for tokens in output.num_scheduled_tokens.values() if tokens > 1)
        self.empty = not output.num_scheduled_tokens
        self._scheduled.append((time.monotonic(), prefill))

    def done(self) -> None:
        """The oldest that is under way."""
        if not self._scheduled:
            return
        now_s = time.monotonic()
        scheduled_s, prefill = self._scheduled.popleft()
        # One that was scheduled while another ran began when that was done.
        took_s = now_s - max(scheduled_s, self._done_s)
        self._done_s = now_s
        self._most = max(self._most, prefill)
        if prefill and prefill >= _TELLING * self._most:
            self._seconds = _FADING * self._seconds + took_s
            self._tokens = _FADING * self._tokens + prefill


def measure_steps(scheduler: Any) -> StepCost:
    """Measures from now on. Wraps two methods of the scheduler."""
    cost = StepCost()
    schedule, update = scheduler.schedule, scheduler.update_from_output

    def measured_schedule(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        cost.scheduled(output)
        return output

    def measured_update(*args: Any, **kwargs: Any) -> Any:
        cost.done()
        return update(*args, **kwargs)

    scheduler.schedule, scheduler.update_from_output = measured_schedule, measured_update
    return cost
