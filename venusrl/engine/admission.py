"""Who gets into a step: how much prefill it takes, who is displaced, who is passed.

- Prefill: decoding reads the weights and the whole cache, and while it does, some prefill costs
  next to nothing; more of it is paid by everybody who decodes.
- Displacement: a critical request that has waited (`room.py` says for how long) takes the place of
  background ones that run, if that makes it fit. Victims come after it in the queue's own order:
  any other victim would be admitted again before it, and displaced again, for ever.
- Passing, with a host tier: memory is overbooked there, so that somebody always waits. Who finds no
  room lets those behind go first that do; for a bounded time, as they keep taking what it needs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from venusrl.engine.scheduler_options import BACKGROUND

if TYPE_CHECKING:
    from venusrl.engine.scheduler import PriorityMixin

_MAY_RUN = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def step_tokens(scheduler: PriorityMixin) -> int:
    """Tokens that the next step computes at most."""
    whole: int = scheduler.max_num_scheduled_tokens
    prefill = scheduler.options.prefill_tokens
    decoding = sum(_wanted(r) for r in scheduler.running if not r.is_prefill_chunk)
    return min(whole, decoding + prefill) if prefill and decoding else whole


def displace(scheduler: PriorityMixin) -> None:
    """The head of the queue, if critical, takes the place of as few background requests as make it
    fit; of none if all would not be enough, or where others pass it."""
    running = scheduler.running
    if not scheduler.waiting or not running or scheduler.pause_state != PauseState.UNPAUSED:
        return
    claimant = scheduler.waiting.peek_request()
    if claimant.priority >= BACKGROUND or claimant.status not in _MAY_RUN:
        return
    if scheduler.options.patience_s:
        return
    if claimant.num_stale_output_tokens and not claimant.drop_stale_output:
        return  # vLLM does not resume it before an older step has delivered its tokens
    victims = sorted((r for r in running if r.priority >= BACKGROUND), reverse=True)
    if not victims:
        return
    seats = scheduler.max_num_active_reqs - len(running) - scheduler.num_waiting_for_streaming_input
    room = scheduler.room
    blocks = room.free_for(claimant) - room.needed(claimant) - room.reserve()
    budget = scheduler.max_num_scheduled_tokens - sum(_wanted(r) for r in running)
    if not room.may_destroy(claimant, -blocks):
        return
    for count, victim in enumerate([*victims, None]):
        if seats > 0 and blocks >= 0 and budget > 0:
            for displaced in victims[:count]:
                scheduler.put_back(displaced)
            return
        if victim is None or not scheduler._request_blocks_can_be_freed(victim):
            return
        seats += 1
        held = scheduler.kv_cache_manager.get_blocks(victim.request_id).blocks[0]
        blocks += 1 + sum(block.ref_cnt == 1 for block in held)
        budget += _wanted(victim)


class Passing:
    """Who waits for room, since when, and for how much."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waits: dict[str, tuple[float, int]] = {}  # by request: since, blocks

    def passes(self, scheduler: PriorityMixin, request: Any) -> bool:
        """Whether a request that could be next leaves its turn to those behind it."""
        # Where nothing runs the first may take any block; what holds blocks already has its room.
        if not self._patience_s or not scheduler.running or request.num_computed_tokens:
            return False
        free = scheduler.room.free_for(request)
        since, needed = self._waits.get(request.request_id, (time.monotonic(), 0))
        if needed <= free:
            # Looked up again only where the last answer would let it in: it costs a walk.
            needed = scheduler.room.needed(request)
        if needed <= free:
            return False
        self._waits[request.request_id] = (since, needed)
        passes = time.monotonic() - since < self._patience_s
        scheduler.counts.passed += passes
        return passes

    def forget(self, request_id: str) -> None:
        """It runs, or is over."""
        self._waits.pop(request_id, None)


def _wanted(request: Any) -> int:
    """Tokens that a running request takes of the next step's budget, at most."""
    wanted = request.num_tokens_with_spec + request.num_output_placeholders
    return max(1, int(wanted - request.num_computed_tokens))
