"""vLLM's scheduler, with trajectories instead of requests: everything that we override of it.

    EngineArgs(scheduler_cls="venusrl.engine.scheduler.PriorityScheduler",
               scheduling_policy="priority", additional_config={"venus": {"table": PATH}})

What each trajectory is worth is read from a shared table (`shared_table.DECISION`) once per step:
class, rank, level. A request says whose turn it is (`shared_table.Claim`) by
`SamplingParams(extra_args={"venus_slot": row, "venus_trajectory": id})`; one that says nothing, or
names a row that is no longer its own, comes after all others.

- Admission and prefill budget: by (class, rank). vLLM's own queue does it, with our priorities.
- Displacement: a critical request that waits takes the place of background ones that run, if that
  makes it fit. Victims come after it in the queue's own order: any other victim would be admitted
  again before it, and displaced again, for ever.
- Residency: `residency.py`. Blocks of level high are pinned between turns. Whoever needs room takes
  it from the worst record that is worse than itself; where nothing else runs, from any.

Relies on interfaces that vLLM does not promise; tests/rl/test_scheduler_interface.py pins them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from venusrl.engine.invariants import check
from venusrl.engine.residency import Residency
from venusrl.engine.scheduler_options import Counts, Options, claim_of
from venusrl.engine.shared_table import (
    DECISION,
    NOBODY,
    REPORT,
    Claim,
    Rows,
    SharedTable,
)
from venusrl.schedule.snapshot import Level

# Priorities as vLLM's queue takes them, lower first: critical, background, not ours.
_BACKGROUND = 1 << 32
_UNKNOWN = 1 << 33
_REPORT_INTERVAL_S = 0.05

if TYPE_CHECKING:
    _Base = Scheduler
else:
    _Base = object


class PriorityMixin(_Base):
    """All that both variants share."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        self.options = Options.of(vllm_config)
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError("start the scheduler: the model has more than one kind of KV cache")
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self.table = SharedTable.attach(Path(self.options.table), DECISION)
        self.table_version = 0
        self.decision: Rows = np.zeros(self.table.rows, DECISION)
        self.decision["trajectory"] = NOBODY
        self.slots: dict[int, int] = {}  # of the trajectories that this engine knows
        self.claims: dict[str, Claim] = {}  # by request
        self.residency = Residency(self.kv_cache_manager.block_pool)
        self.counts = Counts()
        self._report = self.options.report and SharedTable.attach(Path(self.options.report), REPORT)
        if isinstance(self._report, SharedTable) and self._report.rows != self.table.rows:
            raise ValueError(f"start the scheduler: {self._report.path} has another size")
        self._report_due = 0.0
        manager: Any = self.kv_cache_manager
        manager.allocate_slots = self._demoting(manager.allocate_slots)

    # --- what vLLM calls ----------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        claim = claim_of(request, self.table.rows)
        if claim is not None:
            self.claims[request.request_id] = claim
            self.slots[claim.trajectory] = claim.slot
        request.priority = self._priority(request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._read_table()
        self._displace()
        # Decoding costs one token each and is always worth it; then prefill, by priority.
        self.running.sort(key=lambda request: (request.is_prefill_chunk, request.priority))
        output = super().schedule(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            self._runs(new.req_id)
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            self._runs(request_id)
        self.counts.steps += 1
        self._tell()
        every = self.options.check_every
        if every and self.counts.steps % every == 0:
            check(self)
            self.counts.checked += 1
        return output

    def _free_request_blocks(self, request: Any) -> None:
        claim = self.claims.get(request.request_id)
        if claim is not None and request.is_finished():
            del self.claims[request.request_id]
            blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0]
            level = self._level(claim.trajectory)
            # One that never ran holds nothing, and leaves the record of the turn before.
            if blocks and not self._runs_still(claim.trajectory):
                self.residency.keep(claim.trajectory, blocks, high=level == Level.HIGH)
            super()._free_request_blocks(request)
            if level == Level.UNUSED:
                self._release(claim.trajectory)
            return
        super()._free_request_blocks(request)

    def _runs_still(self, trajectory: int) -> bool:
        return any(
            claim.trajectory == trajectory
            and self.requests[request_id].status == RequestStatus.RUNNING
            for request_id, claim in self.claims.items()
        )

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self.residency.clear()
        return bool(super().reset_prefix_cache(*args, **kwargs))

    # --- decisions ----------------------------------------------------------------------------

    def _read_table(self) -> None:
        found = self.table.read(self.table_version)
        if found is None:
            return
        self.table_version, self.decision = found
        for request in self.requests.values():
            request.priority = self._priority(request)
        for queue in (self.waiting, self.kv_holding_waiting):
            # Removing nothing restores the order of the heap.
            queue.remove_requests(set())
        for trajectory in list(self.slots):
            level = self._level(trajectory)
            if level == Level.UNUSED:
                self._release(trajectory)
            elif level == Level.HIGH:
                self.residency.raise_level(trajectory)
            else:
                self.residency.lower_level(trajectory)

    def _release(self, trajectory: int) -> None:
        self.counts.released += trajectory in self.residency.records
        self.residency.release(trajectory)
        if not any(claim.trajectory == trajectory for claim in self.claims.values()):
            self.slots.pop(trajectory, None)

    def _row(self, trajectory: int) -> Any | None:
        """The row of a trajectory that the table still knows."""
        row: Any = self.decision[self.slots[trajectory]] if trajectory in self.slots else None
        return row if row is not None and row["trajectory"] == trajectory else None

    def _level(self, trajectory: int) -> Level:
        row = self._row(trajectory)
        if row is None or row["worker"] != self.options.worker:
            return Level.UNUSED
        return Level(min(int(row["level"]), Level.HIGH))

    def _trajectory_priority(self, trajectory: int) -> int:
        row = self._row(trajectory)
        if row is None:
            return _UNKNOWN
        return int(row["rank"]) + (0 if row["critical"] else _BACKGROUND)

    def _priority(self, request: Any) -> int:
        claim = self.claims.get(request.request_id)
        return _UNKNOWN if claim is None else self._trajectory_priority(claim.trajectory)

    # --- displacement -------------------------------------------------------------------------

    def _displace(self) -> None:
        """The head of the queue, if critical, takes the place of as few background requests as
        make it fit; of none if all would not be enough."""
        if not self.waiting or not self.running or self.pause_state != PauseState.UNPAUSED:
            return
        claimant = self.waiting.peek_request()
        if claimant.priority >= _BACKGROUND or claimant.status not in _MAY_RUN:
            return
        if claimant.num_stale_output_tokens and not claimant.drop_stale_output:
            return  # vLLM does not resume it before an older step has delivered its tokens
        victims = sorted(
            (r for r in self.running if r.priority >= _BACKGROUND and claimant < r), reverse=True
        )
        if not victims:
            return
        seats = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        blocks = self._free_for(claimant) - self._blocks_needed(claimant) - len(self.running)
        budget = self.max_num_scheduled_tokens - sum(_wanted(r) for r in self.running)
        for count, victim in enumerate([*victims, None]):
            if seats > 0 and blocks >= 0 and budget > 0:
                for displaced in victims[:count]:
                    self._put_back(displaced)
                return
            if victim is None or not self._request_blocks_can_be_freed(victim):
                return
            seats += 1
            held = self.kv_cache_manager.get_blocks(victim.request_id).blocks[0]
            blocks += 1 + sum(block.ref_cnt == 1 for block in held)
            budget += _wanted(victim)

    def _put_back(self, victim: Any) -> None:
        self.running.remove(victim)
        self._preempt_request(victim, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # It may be admitted again in this very step: the runner must then take it for a new one.
        self.prev_step_scheduled_req_ids.discard(victim.request_id)
        self.counts.displaced += 1

    def _blocks_needed(self, request: Any) -> int:
        """Free blocks that admitting the whole request takes."""
        hits = self.kv_cache_manager.get_computed_blocks(request)[0].blocks[0]
        held = sum(block.ref_cnt > 0 for block in hits)
        whole: int = -(-request.num_tokens // self.block_size)
        return whole - held

    def _free_for(self, request: Any) -> int:
        """Blocks that are free, or that others would give back for it."""
        pool = self.kv_cache_manager.block_pool
        pinned = sum(self.residency.records[t].pinned for t in self._worse(request))
        free: int = pool.get_num_free_blocks()
        return free + pinned

    # --- residency ----------------------------------------------------------------------------

    def _runs(self, request_id: str) -> None:
        """From now on it has references of its own."""
        claim = self.claims.get(request_id)
        if claim is not None:
            self.residency.drop(claim.trajectory)

    def _worse(self, request: Any) -> list[int]:
        """Trajectories whose pinned blocks may go for a request, the worst first."""
        claim = self.claims.get(request.request_id)
        own = None if claim is None else claim.trajectory
        pinned = [t for t, record in self.residency.records.items() if record.pinned]
        running = len(self.running)
        alone = running == 0 or (running == 1 and request.status == RequestStatus.RUNNING)
        if not alone:
            limit = request.priority
            if request.status == RequestStatus.RUNNING:
                # vLLM preempts the worst that runs. Whoever is worst gives way, running or not.
                limit = max(r.priority for r in self.running)
            elif own is None or self._level(own) != Level.HIGH:
                return []
            pinned = [t for t in pinned if t != own and self._trajectory_priority(t) > limit]
        # Its own blocks last: they are what it would hit.
        pinned.sort(key=lambda t: (t != own, self._trajectory_priority(t)), reverse=True)
        return pinned

    def _demoting(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        """`allocate_slots`, which takes blocks back from records before it fails."""

        def allocate_slots(request: Any, num_new_tokens: int, **rest: Any) -> Any:
            found = allocate(request, num_new_tokens, **rest)
            if found is None and self.residency.pinned:
                again = partial(allocate, request, num_new_tokens, **rest)
                found = self._after_demotion(request, again)
            return found

        return allocate_slots

    def _after_demotion(self, request: Any, again: Callable[[], Any]) -> Any:
        worse = self._worse(request)
        first = request.status != RequestStatus.RUNNING
        if first and self._blocks_needed(request) > self._free_for(request):
            return None  # all of it would go for nothing
        step = 8
        for trajectory in worse:
            while self.residency.records[trajectory].pinned:
                self.counts.demoted_blocks += self.residency.shrink(trajectory, step)
                step *= 2  # a long context needs few attempts
                found = again()
                if found is not None:
                    self.counts.demoted += 1
                    return found
            self.counts.demoted += 1
        return None

    # --- report -------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Publishes who holds how much, now and then."""
        now = time.monotonic()
        if not isinstance(self._report, SharedTable) or now < self._report_due:
            return
        self._report_due = now + _REPORT_INTERVAL_S
        rows = np.zeros(self._report.rows, REPORT)
        rows["trajectory"] = NOBODY
        for trajectory in self.residency.records:
            tokens = self.residency.cached_blocks(trajectory) * self.block_size
            rows[self.slots[trajectory]] = (trajectory, tokens)
        for request in self.running:
            claim = self.claims.get(request.request_id)
            if claim is not None:
                rows[claim.slot] = (claim.trajectory, request.num_computed_tokens)
        self._report.publish(rows)


_MAY_RUN = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def _wanted(request: Any) -> int:
    """Tokens that a running request takes of the next step's budget, at most."""
    wanted = request.num_tokens_with_spec + request.num_output_placeholders
    return max(1, int(wanted - request.num_computed_tokens))


class PriorityScheduler(PriorityMixin, Scheduler):
    """For engines without asynchronous scheduling, as on CPU."""


class AsyncPriorityScheduler(PriorityMixin, AsyncScheduler):
    """For engines with it: there a subclass of `Scheduler` would switch it off."""
