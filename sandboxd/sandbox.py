"""One sandbox in the daemon's memory: its record, state, link to init and running commands."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandboxd.errors import Conflict, LimitExceeded, SandboxGone
from sandboxd.lifecycle import LIVE, EndReason, Event, State, next_state
from sandboxd.registry import SandboxRecord
from sandboxd.start_gate import StartGate

if TYPE_CHECKING:
    from sandboxd.ended_execs import EndedExecs
    from sandboxd.events import EventLog
    from sandboxd.init_link import InitLink
    from sandboxd.launch import LaunchedSandbox
    from sandboxd.output_ring import KeptOutput
    from sandboxd.running_exec import RunningExec
    from sandboxd.templates.pool import PoolUsers
    from sandboxd.templates.template import Template
    from sandboxd.tracer import Tracer

# The upper half of an exec id is the generation of the daemon that gave it, so that a restarted
# daemon never names a new command, or its group, as an old one.
_GENERATION_SHIFT = 32

END_TEXTS = {
    EndReason.DESTROYED: "it was destroyed",
    EndReason.EXPIRED: "its time to live ended",
    EndReason.OOM: "it ran out of memory",
    EndReason.KILLED: "its init was killed",
    EndReason.CREATE_FAILED: "it could not be created",
    EndReason.LEASE_ENDED: "its lease ended",
    EndReason.SHUTDOWN: "the daemon was stopped",
    EndReason.CAPTURE_CUT: "a snapshot of it was cut",
}


def boottime_s() -> float:
    """The clock of deadlines: goes on while the machine sleeps, and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class ExecBudget:
    """How many commands there may be at once: of one sandbox, and in the whole daemon.

    Each holds some of the daemon's descriptors until nothing writes to its pipes any more. Without
    the second bound many sandboxes could take them all, and the daemon could accept nobody.
    """

    per_sandbox: int
    total: int
    used: int = 0

    def take(self, running_here: int, operation: str, sandbox_id: str) -> None:
        """Count one more, or `LimitExceeded`."""
        for count, limit, name in (
            (running_here, self.per_sandbox, "max_execs_per_sandbox"),
            (self.used, self.total, "max_execs"),
        ):
            if count >= limit:
                raise LimitExceeded(
                    f"{count} commands are running already",
                    operation=operation,
                    object=sandbox_id,
                    cause=f"{name} is {limit}; a command counts while anything holds its output",
                )
        self.used += 1


@dataclass
class LiveSandbox:
    """Mutable; touched on the event loop only."""

    sandbox_id: str
    tenant_uid: int
    image: str
    budget: ExecBudget
    pool: PoolUsers
    events: EventLog
    kept_output: KeptOutput
    ended: EndedExecs
    """Kept commands that have ended."""
    state: State = State.CREATING
    record: SandboxRecord | None = None
    launched: LaunchedSandbox | None = None
    link: InitLink | None = None
    execs: dict[int, RunningExec] = field(default_factory=dict)
    """Every command that init still knows of, also those whose leader has ended."""
    template: Template | None = None
    """What it was forked from: its memory still refers to the template's pages."""
    tracer: Tracer | None = None
    """Captures it; None before the first time."""
    gate: StartGate = field(default_factory=StartGate)
    end_reason: EndReason | None = None
    ttl_timer: asyncio.TimerHandle | None = None
    take_down: asyncio.Task[None] | None = None
    oom_kills_seen: int = 0
    _counted: Template | None = None
    _generation: int = 0
    _last_exec: int = 0

    def tell(self, kind: str, **details: object) -> None:
        """Whoever follows its events. Of one that is not on record yet nobody knows."""
        if self.record is not None:
            self.events.emit(
                kind,
                self.sandbox_id,
                self.tenant_uid,
                self.record.labels,
                details,
                lease=self.record.lease,
                template=self.record.template,
            )

    def apply(self, event: Event, reason: EndReason | None = None) -> None:
        """Step the state machine; the first reason for an end is the one that is kept."""
        self.state = next_state(self.state, event)
        if self.end_reason is None:
            self.end_reason = reason

    def count_for(self, template: Template | None) -> None:
        """It is one of the template's forks that somebody has, or (None) no longer: what merely
        stands ready does not keep a template."""
        if template is not None:
            self.pool.add(template.template_id, template.files)
        if self._counted is not None:
            self.pool.remove(self._counted.template_id)
        self._counted = template

    def next_exec_id(self) -> int:
        """An id that no command of this sandbox had before."""
        self._last_exec += 1
        generation, number = self.exec_ids
        return (generation << _GENERATION_SHIFT) + number

    def continue_exec_ids(self, generation: int, last_exec: int) -> None:
        """Give ids from here on that no command of the original had."""
        self._generation = generation
        self._last_exec = last_exec

    @property
    def exec_ids(self) -> tuple[int, int]:
        """Where the ids of commands stand: generation, and number within it."""
        generation = self.record.generation if self.record is not None else self._generation
        return generation, self._last_exec

    def settles_for_capture(self) -> bool:
        """Whether a file operation is still under way. Those that watch, which would be for ever,
        are ended, and start again by themselves."""
        busy = False
        for each in list(self.execs.values()):
            if each.is_program:
                continue
            if each.ends_for_capture:
                each.end_for_capture()
                busy = busy or not each.over
            else:
                busy = True
        return busy

    @property
    def is_live(self) -> bool:
        """It runs or is paused."""
        return self.state in LIVE

    def require_live(self, operation: str) -> LaunchedSandbox:
        """What a request needs that a paused sandbox answers, too; `SandboxGone` or `Conflict`
        when it is not there."""
        if self.state is State.CREATING:
            raise Conflict(
                "the sandbox is still being created", operation=operation, object=self.sandbox_id
            )
        if not self.is_live or self.launched is None:
            raise self.gone_error(operation)
        return self.launched

    def require_running(self, operation: str) -> tuple[LaunchedSandbox, InitLink]:
        """What a request to a sandbox needs; `SandboxGone` or `Conflict` when it is not up."""
        launched = self.require_live(operation)
        if self.state is State.PAUSED:
            raise Conflict(
                "the sandbox is paused",
                operation=operation,
                object=self.sandbox_id,
                cause="resume it first",
            )
        if self.link is None:
            raise self.gone_error(operation)
        return launched, self.link

    def add_exec(self, running: RunningExec, operation: str) -> None:
        """Enter a command; `LimitExceeded` when there is no room, here or in the daemon."""
        self.budget.take(len(self.execs), operation, self.sandbox_id)
        self.execs[running.exec_id] = running

    def drop_exec(self, exec_id: int) -> bool:
        """Forget a command; False when it was forgotten before."""
        if self.execs.pop(exec_id, None) is None:
            return False
        self.budget.used -= 1
        self.gate.notify()
        return True

    def gone_error(self, operation: str) -> SandboxGone:
        """The answer to requests for a sandbox that has ended."""
        return gone_error(self.sandbox_id, operation, self.end_reason)

    def expires_at(self) -> float | None:
        """The deadline on the wall clock as it stands now."""
        if self.record is None or self.record.expires_boottime_s is None:
            return None
        return time.time() + self.record.expires_boottime_s - boottime_s()


def gone_error(sandbox_id: str, operation: str, reason: EndReason | None) -> SandboxGone:
    """`SandboxGone` that says why."""
    return SandboxGone(
        "the sandbox is gone",
        operation=operation,
        object=sandbox_id,
        cause=END_TEXTS[reason] if reason is not None else "",
    )
