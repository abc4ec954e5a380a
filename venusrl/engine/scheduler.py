"""vLLM's scheduler, with trajectories instead of requests: everything that we override of it.

    EngineArgs(scheduler_cls="venusrl.engine.scheduler.PriorityScheduler",
               scheduling_policy="priority", additional_config={"venus": {"table": PATH}})

What each trajectory is worth is read from a shared table (`shared_table.DECISION`) once per step:
class, rank, level. A request says whose turn it is (`shared_table.Claim`) by
`SamplingParams(extra_args={"venus_slot": row, "venus_trajectory": id})`; one that says nothing, or
names a row that is no longer its own, comes after all others.

- Admission and prefill: by (class, rank). vLLM's own queue does it, with our priorities.
- How much prefill a step takes, who is displaced and who is passed: `admission.py`.
- Residency: `residency.py`. Blocks of level high are pinned between turns. Who may take them:
  `room.py`. Of what lies in host memory: `host_tier.py`.

Relies on interfaces that vLLM does not promise; tests/rl/test_scheduler_interface.py pins them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from venusrl.engine.admission import Passing, displace, step_tokens
from venusrl.engine.host_tier import host_tier_of, label
from venusrl.engine.invariants import check
from venusrl.engine.residency import Residency
from venusrl.engine.room import Room
from venusrl.engine.scheduler_options import BACKGROUND, UNKNOWN, Counts, Options, claim_of
from venusrl.engine.shared_table import DECISION, NOBODY, REPORT, Claim, Rows, SharedTable
from venusrl.engine.step_cost import measure_steps
from venusrl.schedule.snapshot import Level

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
        self.passing = Passing(self.options.patience_s)
        self.step_cost = measure_steps(self)
        self.counts = Counts()
        self.room = Room(self)
        self.host_tier = host_tier_of(self)
        self._report = self.options.report and SharedTable.attach(Path(self.options.report), REPORT)
        if isinstance(self._report, SharedTable) and self._report.rows != self.table.rows:
            raise ValueError(f"start the scheduler: {self._report.path} has another size")
        self._report_due = 0.0

    # --- what vLLM calls ----------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        claim = claim_of(request, self.table.rows)
        if claim is not None:
            self.claims[request.request_id] = claim
            self.slots[claim.trajectory] = claim.slot
        if self.host_tier is not None:
            label(request, claim)
        request.priority = self._priority(request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._read_table()
        self.room.look()
        whole_tokens = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = step_tokens(self)
        try:
            displace(self)
            # Decoding costs one token each and is always worth it; then prefill, by priority.
            self.running.sort(key=lambda request: (request.is_prefill_chunk, request.priority))
            output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = whole_tokens
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

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        ready = bool(super()._handle_blocked_waiting_request(request))
        return ready and not self.passing.passes(self, request)

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: Any) -> Any:
        # It ends what is still written for those who lost their place. Whom we put back may read in
        # the same step; then nothing is written for it, and vLLM takes it for a fault.
        reading = {
            request.request_id
            for request in self.kv_holding_waiting
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        }
        lost = scheduler_output.preempted_req_ids - reading
        seen = replace(scheduler_output, preempted_req_ids=lost)
        return super()._build_kv_connector_meta(connector, seen)

    def _free_request_blocks(self, request: Any) -> None:
        self.passing.forget(request.request_id)
        if not request.is_finished():
            self._forget_uncomputed(request)
            super()._free_request_blocks(request)
            return
        claim = self.claims.pop(request.request_id, None)
        if claim is None:
            super()._free_request_blocks(request)
            return
        self.room.ended(request.num_output_tokens)
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0]
        if request.num_preemptions and not blocks:
            # It ended by a step that was under way when it lost its place.
            blocks = self.kv_cache_manager.get_computed_blocks(request)[0].blocks[0]
        level = self.level(claim.trajectory)
        # One that never ran holds nothing, and leaves the record of the turn before.
        if blocks and not self._runs_still(claim.trajectory):
            self.residency.keep(claim.trajectory, blocks, high=level == Level.HIGH)
        super()._free_request_blocks(request)
        if level == Level.UNUSED:
            self._release(claim.trajectory)

    def _forget_uncomputed(self, request: Any) -> None:
        """vLLM names blocks when a step is to fill them. Who loses its place to somebody of the
        same step never does, and nobody may find them."""
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0]
        named = blocks[request.num_computed_tokens // self.block_size :]
        self.kv_cache_manager.evict_blocks({block.block_id for block in named})

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
            level = self.level(trajectory)
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

    def level(self, trajectory: int) -> Level:
        row = self._row(trajectory)
        if row is None or row["worker"] != self.options.worker:
            return Level.UNUSED
        return Level(min(int(row["level"]), Level.HIGH))

    def trajectory_priority(self, trajectory: int) -> int:
        row = self._row(trajectory)
        if row is None:
            return UNKNOWN
        return int(row["rank"]) + (0 if row["critical"] else BACKGROUND)

    def _priority(self, request: Any) -> int:
        claim = self.claims.get(request.request_id)
        return UNKNOWN if claim is None else self.trajectory_priority(claim.trajectory)

    # --- places ---------------------------------------------------------------------------------

    def put_back(self, victim: Any) -> None:
        """It loses its place, and waits again."""
        self.running.remove(victim)
        self._preempt_request(victim, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # It may be admitted again in this very step: the runner must then take it for a new one.
        self.prev_step_scheduled_req_ids.discard(victim.request_id)
        self.counts.displaced += 1

    def _runs(self, request_id: str) -> None:
        """From now on it has references of its own."""
        self.passing.forget(request_id)
        claim = self.claims.get(request_id)
        if claim is not None:
            self.residency.drop(claim.trajectory)

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


class PriorityScheduler(PriorityMixin, Scheduler):
    """For engines without asynchronous scheduling, as on CPU."""


class AsyncPriorityScheduler(PriorityMixin, AsyncScheduler):
    """For engines with it: there a subclass of `Scheduler` would switch it off."""
