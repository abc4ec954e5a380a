"""What the API does, apart from HTTP: the sandboxes of this node and their lives.

Everything here runs on the event loop; the launcher's blocking calls run in a bounded pool of
threads.

Lock order: none is needed. State changes happen between awaits, and `LiveSandbox.take_down` is the
one task that removes a sandbox, whoever asked first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sandboxd.bounds import checked_ttl
from sandboxd.config import Config
from sandboxd.errors import Conflict, InternalError, VenusError
from sandboxd.inherited_execs import take_over_execs
from sandboxd.init_link import InitLink, LinkClosed
from sandboxd.launch import LaunchedSandbox, Launcher, Usage
from sandboxd.leases import Leases
from sandboxd.lifecycle import EndReason, Event, State
from sandboxd.logs.fields import about
from sandboxd.metrics.counters import ServiceCounters
from sandboxd.metrics.instruments import Instruments
from sandboxd.population import Population
from sandboxd.ports import Ports
from sandboxd.recovery import current_boot_id
from sandboxd.registry import Registry, SandboxRecord
from sandboxd.sandbox import LiveSandbox, boottime_s

_LOG = logging.getLogger("sandboxd")
_T = TypeVar("_T")


class SandboxService:
    """Find, adopt and destroy sandboxes; `creation` makes them."""

    def __init__(self, config: Config, launcher: Launcher) -> None:
        self.config = config
        self.counters = ServiceCounters()
        self.instruments = Instruments()
        self._launcher = launcher
        self.registry = Registry(config.sandboxes_dir)
        self.boot_id = current_boot_id()
        self.population = Population(config)
        self.ports = Ports()
        self.pause_expired: Callable[[LiveSandbox], None] = lambda sandbox: None
        """Set by the composition root: what is done with one that is to be paused at its end."""
        self.leases = Leases(config, self.boot_id)
        self.leases.on_end.append(self._end_of_lease)
        self.bulk_reading = asyncio.Lock()
        """Held by who reads what many sandboxes use (sandboxd.bulk_usage)."""
        self._closing = False
        # Creates, captures and merges of layers, which may take long, hold at most as many threads
        # as they have slots, so removals always find one.
        workers = 2 * config.max_concurrent_creates + 2 + 2 * config.max_concurrent_captures
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="launcher")

    @property
    def storage_backend(self) -> str:
        """`btrfs` or `plain`."""
        return "btrfs" if self._launcher.limits_disk else "plain"

    async def usage(self, sandbox: LiveSandbox, operation: str) -> Usage:
        """What it uses now."""
        launched = sandbox.require_live(operation)
        try:
            return await self.in_thread(launched.usage)
        except OSError:
            # Its groups went away between the check and the reading.
            raise sandbox.gone_error(operation) from None

    async def private_bytes(self) -> int:
        """Memory that only single sandboxes hold, of all of them together."""
        return await self.in_thread(self._launcher.private_bytes)

    # -- starting --------------------------------------------------------------------------------

    def refuse_when_closing(self) -> None:
        """`Conflict` once the daemon is being stopped."""
        if self._closing:
            raise Conflict("the daemon is stopping", operation="create sandbox", object="daemon")

    def ready(self, sandbox: LiveSandbox) -> None:
        """It runs; its time begins to count."""
        if sandbox.link is None or sandbox.link.closed:
            raise _died_at_start(sandbox.sandbox_id)
        sandbox.apply(Event.READY)
        self.arm_ttl(sandbox)

    async def connect(self, sandbox: LiveSandbox, launched: LaunchedSandbox) -> InitLink:
        """The link to its init, whose end is the end of the sandbox."""
        try:
            link = await InitLink.connect(launched.control_path, sandbox.sandbox_id)
        except LinkClosed:
            raise _died_at_start(sandbox.sandbox_id) from None
        sandbox.link = link
        sandbox.oom_kills_seen = launched.oom_kills()
        link.on_close = lambda: self.init_died(sandbox)
        return link

    # -- ending ----------------------------------------------------------------------------------

    async def destroy(self, sandbox: LiveSandbox, reason: EndReason = EndReason.DESTROYED) -> None:
        """Returns when nothing of the sandbox is left."""
        if sandbox.state is State.CREATING:
            raise Conflict(
                "the sandbox is still being created",
                operation="destroy sandbox",
                object=sandbox.sandbox_id,
            )
        if sandbox.state is not State.GONE:
            sandbox.apply(Event.DESTROY_REQUESTED, reason)
            await self.finish(sandbox)

    def destroy_soon(self, sandbox: LiveSandbox) -> None:
        """As `destroy`, but nobody waits until nothing is left. No command starts in it from here
        on."""
        if sandbox.is_live:
            sandbox.apply(Event.DESTROY_REQUESTED, EndReason.DESTROYED)
            self._begin_take_down(sandbox)

    def set_ttl(self, sandbox: LiveSandbox, ttl_s: float | None) -> None:
        """A new deadline, counted from now."""
        sandbox.require_live("set time to live")
        assert sandbox.record is not None
        checked = checked_ttl(self.config, ttl_s, "set time to live")
        deadline = None if checked is None else boottime_s() + checked
        record = dataclasses.replace(sandbox.record, expires_boottime_s=deadline)
        self.registry.write(record)
        sandbox.record = record
        self.arm_ttl(sandbox)

    def arm_ttl(self, sandbox: LiveSandbox) -> None:
        """Its time to live ends as its record says."""
        if sandbox.ttl_timer is not None:
            sandbox.ttl_timer.cancel()
            sandbox.ttl_timer = None
        if sandbox.record is not None and sandbox.record.expires_boottime_s is not None:
            delay_s = max(0.0, sandbox.record.expires_boottime_s - boottime_s())
            loop = asyncio.get_running_loop()
            sandbox.ttl_timer = loop.call_later(delay_s, self._expire, sandbox)

    def _expire(self, sandbox: LiveSandbox) -> None:
        assert sandbox.record is not None
        if sandbox.state is State.RUNNING and sandbox.record.pause_on_expiry:
            self.pause_expired(sandbox)
        elif sandbox.is_live:
            sandbox.apply(Event.EXPIRED, EndReason.EXPIRED)
            self._begin_take_down(sandbox)

    def init_died(self, sandbox: LiveSandbox) -> None:
        """Its own death, or somebody's outside."""
        if not sandbox.is_live:
            return
        reason = EndReason.KILLED
        with contextlib.suppress(OSError, VenusError):
            assert sandbox.launched is not None
            if sandbox.launched.oom_kills() > sandbox.oom_kills_seen:
                reason = EndReason.OOM
                sandbox.tell("oom", exec_id=None)
                self.counters.oom_kills += 1
        extra = about(sandbox=sandbox.sandbox_id, tenant=sandbox.tenant_uid, reason=reason.value)
        _LOG.warning("init of %s died: %s", sandbox.sandbox_id, reason.value, extra=extra)
        sandbox.apply(Event.INIT_DIED, reason)
        self._begin_take_down(sandbox)

    def give_up(self, sandbox: LiveSandbox, reason: EndReason) -> None:
        """`destroy` it, without waiting for the end."""
        if sandbox.is_live:
            sandbox.apply(Event.DESTROY_REQUESTED, reason)
            self._begin_take_down(sandbox)

    async def _end_of_lease(self, lease_id: str) -> None:
        members = [
            each
            for each in self.population
            if each.record is not None and each.record.lease == lease_id
        ]
        ends = await asyncio.gather(
            *(self.destroy(each, EndReason.LEASE_ENDED) for each in members),
            return_exceptions=True,
        )
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    async def finish(self, sandbox: LiveSandbox) -> None:
        """Take down a sandbox that is stopping; returns when nothing of it is left."""
        # Shielded: a removal goes on when the request that asked for it is cancelled.
        await asyncio.shield(self._begin_take_down(sandbox))

    def _begin_take_down(self, sandbox: LiveSandbox) -> asyncio.Task[None]:
        task = sandbox.take_down
        if task is None or (task.done() and sandbox.state is not State.GONE):
            task = sandbox.take_down = asyncio.ensure_future(self._take_down(sandbox))
            task.add_done_callback(lambda done: _log_failure(sandbox.sandbox_id, done))
        return task

    async def _take_down(self, sandbox: LiveSandbox) -> None:
        began = time.perf_counter()
        if sandbox.ttl_timer is not None:
            sandbox.ttl_timer.cancel()
        await self.dismantle(sandbox)
        sandbox.count_for(None)
        sandbox.pool.keep(sandbox.sandbox_id, {})
        sandbox.apply(Event.DESTROYED)
        if sandbox.end_reason is not None:
            sandbox.tell("killed", reason=sandbox.end_reason.value)
        self.population.remove(sandbox)
        if sandbox.record is not None:
            self.counters.sandboxes_destroyed += 1
            self.instruments.destroy.observe(time.perf_counter() - began)
        if sandbox.end_reason is not None:
            self.instruments.ends[sandbox.end_reason] += 1

    async def dismantle(self, sandbox: LiveSandbox) -> None:
        """Remove all that it consists of, on record and on this node. Idempotent."""
        # First forgotten: if the daemon dies in the middle, the next one removes the rest.
        self.registry.forget(sandbox.sandbox_id)
        if sandbox.link is not None:
            sandbox.link.close()
        for running in list(sandbox.execs.values()):
            running.on_lost()
        sandbox.ended.clear()
        self.ports.cut_all(sandbox.sandbox_id)
        if sandbox.gate.is_closed and sandbox.launched is not None:
            # A capture holds the processes; once they are killed it fails, and lets them go.
            await self.in_thread(sandbox.launched.begin_kill)
            await sandbox.gate.wait_open()
        await self.in_thread(lambda: self._launcher.destroy(sandbox.sandbox_id))
        if sandbox.tracer is not None:
            await self.in_thread(sandbox.tracer.wait_gone)
        sandbox.link = sandbox.launched = sandbox.template = sandbox.tracer = None

    async def close(self, *then: Callable[[], Awaitable[None]]) -> None:
        """Destroy everything. Creates that are under way finish first, and are then destroyed.
        `then` are called last, in order, while there still are threads."""
        self._closing = True
        while len(self.population):
            others = [each for each in self.population if each.state is not State.CREATING]
            if not others:
                await asyncio.sleep(0.01)
                continue
            results = await asyncio.gather(
                *(self.destroy(each, EndReason.SHUTDOWN) for each in others),
                return_exceptions=True,
            )
            if failures := [each for each in results if isinstance(each, BaseException)]:
                _LOG.error("%d sandboxes could not be removed", len(failures))
                break
        self.leases.close()
        for each in then:
            await each()
        self._pool.shutdown(wait=True)

    # -- after a restart -------------------------------------------------------------------------

    async def adopt(self, record: SandboxRecord) -> LiveSandbox:
        """Take over the sandbox of `record`. On an error it must be removed instead."""
        sandbox = self.population.new(record.sandbox_id, record.tenant_uid, record.image)
        launched = await self.in_thread(
            lambda: self._launcher.adopt(record.sandbox_id, record.tenant_uid, record.init_pid)
        )
        sandbox.launched = launched
        sandbox.record = dataclasses.replace(record, generation=record.generation + 1)
        # As the record says: a daemon may have been killed between the two.
        await self.in_thread(lambda: launched.set_frozen(record.paused))
        if record.paused:
            self.registry.write(sandbox.record)
            sandbox.apply(Event.PAUSED)
            self.arm_ttl(sandbox)
        else:
            link = await self.connect(sandbox, launched)
            try:
                await take_over_execs(sandbox, link)
                self.registry.write(sandbox.record)
            except BaseException:
                link.close()
                raise
            self.ready(sandbox)
        self.population.add(sandbox)
        self.counters.sandboxes_adopted += 1
        sandbox.tell("adopted")
        return sandbox

    async def remnants(self) -> set[str]:
        """Ids of which the launcher finds anything on this node."""
        return await self.in_thread(self._launcher.remnants)

    async def remove_remnant(self, sandbox_id: str) -> None:
        """Remove what is left of a sandbox that is not served."""
        self.registry.forget(sandbox_id)
        await self.in_thread(lambda: self._launcher.destroy(sandbox_id))

    async def in_thread(self, call: Callable[[], _T]) -> _T:
        """Run something that blocks, in the launcher's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


def _died_at_start(sandbox_id: str) -> InternalError:
    return InternalError(
        "init died at its start",
        operation="create sandbox",
        object=sandbox_id,
        cause="its memory limit may be too small",
    )


def _log_failure(sandbox_id: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        extra = about(sandbox=sandbox_id)
        _LOG.error("remove %s: %s", sandbox_id, error, exc_info=error, extra=extra)
