"""New sandboxes: of an image, or of a template, one or many; all or nothing.

Everything here runs on the event loop; the launcher's blocking calls run in the service's threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandboxd.bounds import CreateOptions, checked_limits, checked_ttl
from sandboxd.errors import ForkFailed, LimitExceeded, OperationTimeout, VenusError
from sandboxd.launch import Launcher
from sandboxd.lifecycle import EndReason, Event, State
from sandboxd.logs.fields import about
from sandboxd.metrics.instruments import EMPTY, HIT
from sandboxd.preparation import Preparation, Prepared, new_id
from sandboxd.registry import SandboxRecord
from sandboxd.sandbox import LiveSandbox, boottime_s
from sandboxd.service import SandboxService
from sandboxd.standing import StandingSandboxes
from sandboxd.standing_plan import Shape
from sandboxd.templates import commands
from sandboxd.templates.recipe import RecipeCommand
from sandboxd.templates.template import Template

_LOG = logging.getLogger("sandboxd")


class _Abandoned(Exception):
    """Another sandbox of the row failed."""


@dataclass(frozen=True)
class _Wanted:
    """One request, checked."""

    shape: Shape
    options: CreateOptions
    ttl_s: float | None


class Creation:
    """Admits creates, makes them wait for their turn, and brings sandboxes up."""

    def __init__(self, service: SandboxService, launcher: Launcher) -> None:
        self._service = service
        self._config = service.config
        self._launcher = launcher
        self._slots = asyncio.Semaphore(service.config.max_concurrent_creates)
        self._preparation = Preparation(service, launcher)
        self.standing = StandingSandboxes(service.config, self._preparation, self._slots)
        self._queued = 0

    async def create(self, tenant_uid: int, options: CreateOptions) -> LiveSandbox:
        """A running sandbox of an image, or an error and nothing left."""
        [sandbox] = await self._create_all(tenant_uid, options, None, 1, ahead=True)
        return sandbox

    async def fork(
        self, template: Template, wanted: CreateOptions, count: int, *, ahead: bool = True
    ) -> list[LiveSandbox]:
        """Running sandboxes of a template, all of them, or an error and nothing left.

        The caller keeps the template's layers meanwhile. `ahead`: there may be more requests for
        this template.
        """
        options = template.record.options(wanted)
        tenant_uid = template.record.tenant_uid
        made = await self._create_all(tenant_uid, options, template, count, ahead=ahead)
        self._service.counters.sandboxes_forked += count
        return made

    def admit(self, tenant_uid: int, count: int) -> None:
        """`LimitExceeded` when there is no room for so many more."""
        self._service.refuse_when_closing()
        try:
            self._service.population.admit(tenant_uid, self._queued, count)
        except LimitExceeded:
            self._service.counters.creates_refused += 1
            raise

    @property
    def waiting(self) -> int:
        """Creates that are admitted and wait for their turn."""
        return self._queued

    async def _create_all(
        self,
        tenant_uid: int,
        options: CreateOptions,
        template: Template | None,
        count: int,
        *,
        ahead: bool,
    ) -> list[LiveSandbox]:
        began = time.perf_counter()
        limits = checked_limits(self._config, options, limits_disk=self._launcher.limits_disk)
        ttl_s = checked_ttl(self._config, options.ttl_s, "create sandbox")
        self._service.leases.require(options.lease, tenant_uid, "create sandbox")
        self.admit(tenant_uid, count)
        population = self._service.population
        shape = Shape(tenant_uid, options.image, template, limits)
        # The host name of one that stands is its id, as that of any that nobody named.
        may_stand = options.hostname is None and ahead
        taken = self.standing.take(shape, count) if may_stand else []
        self._service.counters.standing_taken += len(taken)
        standing = {each.sandbox.sandbox_id: each for each in taken}
        missing = range(count - len(taken))
        sandboxes = [
            *(each.sandbox for each in taken),
            *(population.new(new_id(), tenant_uid, options.image) for _ in missing),
        ]
        for sandbox in sandboxes:
            sandbox.count_for(template)
            population.add(sandbox)
        # Shielded: launches run in threads, which nothing interrupts. Whoever asked may go away;
        # then what was made is removed.
        wanted = _Wanted(shape, options, ttl_s)
        row = asyncio.ensure_future(self._make_row(sandboxes, wanted, standing))
        try:
            await asyncio.shield(row)
        except asyncio.CancelledError:
            row.add_done_callback(lambda _: asyncio.ensure_future(self._remove(sandboxes)))
            raise
        self._service.counters.sandboxes_created += count
        instruments = self._service.instruments
        latency = instruments.create if template is None else instruments.fork
        latency[EMPTY if missing else HIT].observe(time.perf_counter() - began)
        return sandboxes

    async def _make_row(
        self,
        sandboxes: Sequence[LiveSandbox],
        wanted: _Wanted,
        standing: Mapping[str, Prepared],
    ) -> None:
        failed = asyncio.Event()
        if len(sandboxes) == 1:  # the usual case, without a task of its own
            [only] = sandboxes
            await self._create_one(only, wanted, failed, standing.get(only.sandbox_id))
            return
        ends = await asyncio.gather(
            *(
                self._create_one(each, wanted, failed, standing.get(each.sandbox_id))
                for each in sandboxes
            ),
            return_exceptions=True,
        )
        errors = [each for each in ends if isinstance(each, BaseException)]
        if errors:
            await self._remove(sandboxes)
            # Those that only stopped because another had failed say nothing.
            raise next((each for each in errors if not isinstance(each, _Abandoned)), errors[0])

    async def _remove(self, sandboxes: Sequence[LiveSandbox]) -> None:
        running = [each for each in sandboxes if each.state is State.RUNNING]
        await asyncio.gather(
            *(self._service.destroy(each, EndReason.CREATE_FAILED) for each in running),
            return_exceptions=True,
        )

    async def _create_one(
        self,
        sandbox: LiveSandbox,
        wanted: _Wanted,
        failed: asyncio.Event,
        standing: Prepared | None,
    ) -> None:
        try:
            await self._wait_for_slot(sandbox)
            try:
                self._service.refuse_when_closing()
                if failed.is_set():
                    raise _Abandoned
                await self._bring_up(sandbox, wanted, standing)
            finally:
                self._slots.release()
            # A command may take long, and others wait for the slot.
            if sandbox.template is not None:
                await self._run_on_fork(sandbox, sandbox.template.record.on_fork)
        except BaseException as error:
            failed.set()
            self._service.counters.creates_failed += 1
            if standing is not None:
                standing.abandon()
            await self._failed(sandbox, error)
            raise

    async def _wait_for_slot(self, sandbox: LiveSandbox) -> None:
        began = time.perf_counter()
        self._service.counters.creates_queued += self._slots.locked()
        self._queued += 1
        try:
            async with asyncio.timeout(self._config.create_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise OperationTimeout(
                "the create waited too long for its turn",
                operation="create sandbox",
                object=sandbox.sandbox_id,
                cause=f"create_timeout_s is {self._config.create_timeout_s:g}",
            ) from None
        finally:
            self._queued -= 1
        self._service.instruments.create_wait.observe(time.perf_counter() - began)

    async def _bring_up(
        self, sandbox: LiveSandbox, wanted: _Wanted, standing: Prepared | None
    ) -> None:
        if standing is not None:
            try:
                await self._finish(standing, wanted)
                return
            except VenusError as error:
                # As if none had stood there.
                _LOG.info("%s failed before it was asked for: %s", sandbox.sandbox_id, error)
                await self._preparation.discard(standing)
        made = await self._preparation.begin(sandbox, wanted.shape, wanted.options.hostname)
        await self._finish(made, wanted)

    async def _finish(self, made: Prepared, wanted: _Wanted) -> None:
        """It runs, is on record, and its time begins to count."""
        await self._preparation.complete(made)
        sandbox, launched, template = made.sandbox, made.sandbox.launched, wanted.shape.template
        assert launched is not None
        limits, ttl_s = wanted.shape.limits, wanted.ttl_s
        options = wanted.options
        if template is None:
            options = options.over(self._launcher.images.defaults(options.image))
        record = SandboxRecord(
            sandbox_id=sandbox.sandbox_id,
            image=options.image,
            tenant_uid=sandbox.tenant_uid,
            memory_bytes=limits.memory_bytes,
            pids=limits.pids,
            cpu_cores=limits.cpu_cores,
            disk_bytes=limits.disk_bytes,
            hostname=made.request.hostname,
            init_pid=launched.init_pid,
            init_start_ticks=made.init_start_ticks,
            boot_id=self._service.boot_id,
            created_at=time.time(),
            expires_boottime_s=None if ttl_s is None else boottime_s() + ttl_s,
            generation=0 if template is None else template.record.exec_generation,
            env=options.env,
            cwd=options.cwd,
            user=options.user,
            labels=options.labels,
            generation_id=made.request.generation,
            template="" if template is None else template.template_id,
            lease=options.lease,
            ephemeral=options.ephemeral,
            pause_on_expiry=options.expiry.pause,
            resume_ttl_s=options.expiry.resume_ttl_s,
        )
        # It may have ended meanwhile; from here on its end finds this one.
        self._service.leases.require(options.lease, sandbox.tenant_uid, "create sandbox")
        self._service.registry.write(record)
        sandbox.record = record
        sandbox.tell("created", image=options.image, template=record.template or None)
        self._service.ready(sandbox)
        sandbox.tell("started")

    async def _run_on_fork(self, sandbox: LiveSandbox, command: RecipeCommand | None) -> None:
        if command is None:
            return
        end = await commands.run(sandbox, command.argv, "fork", command.timeout_s)
        if not end.ok:
            raise ForkFailed(
                "the command on_fork failed",
                operation="fork",
                object=sandbox.sandbox_id,
                cause=end.describe(),
            )

    async def _failed(self, sandbox: LiveSandbox, error: BaseException) -> None:
        if isinstance(error, VenusError):
            extra = about(sandbox=sandbox.sandbox_id, tenant=sandbox.tenant_uid)
            _LOG.warning("create %s failed: %s", sandbox.sandbox_id, error, extra=extra)
        if sandbox.state is State.CREATING:
            sandbox.apply(Event.CREATE_FAILED, EndReason.CREATE_FAILED)
            await self._service.finish(sandbox)
        elif sandbox.state is State.RUNNING:  # what it had to do first failed
            await self._service.destroy(sandbox, EndReason.CREATE_FAILED)
