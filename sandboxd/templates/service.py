"""Snapshots, forks and templates, as the API offers them.

Everything here runs on the event loop; captures run in the service's threads. A snapshot closes the
sandbox's gate: what wants to start in it meanwhile, another snapshot too, waits for its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping

from sandboxd.bounds import CreateOptions, checked_count
from sandboxd.creation import Creation
from sandboxd.errors import LimitExceeded, VenusError
from sandboxd.keeper import PoolKeeper
from sandboxd.launch import Launcher
from sandboxd.launch_request import Limits
from sandboxd.lifecycle import EndReason
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService
from sandboxd.storage.layers import to_merge
from sandboxd.templates.capture import (
    OPERATION,
    USUAL,
    CaptureWish,
    Externals,
    capture,
    gather_externals,
    surviving_commands,
)
from sandboxd.templates.pages import KeptPages
from sandboxd.templates.pool import decide_eviction
from sandboxd.templates.recipe import RecipeCommand
from sandboxd.templates.records import TemplateRecords
from sandboxd.templates.store import TemplateStore
from sandboxd.templates.template import Template, TemplateRecord
from sandboxd.tracer import CaptureCut, Tracer

_LOG = logging.getLogger("sandboxd")


class TemplateService:
    """Wired by the composition root beside `SandboxService`."""

    def __init__(
        self,
        service: SandboxService,
        creation: Creation,
        launcher: Launcher,
        keeper: PoolKeeper,
    ) -> None:
        self._service = service
        self._creation = creation
        self._layers = launcher.layers
        self._pages = KeptPages(keeper)
        self._pool = service.population.pool
        self._slots = asyncio.Semaphore(service.config.max_concurrent_captures)
        # Of their own: a merge may take long, and holds no sandbox up.
        self._merges = asyncio.Semaphore(service.config.max_concurrent_captures)
        self._last_used_s: dict[str, float] = {}
        service.leases.on_end.append(self._end_of_lease)
        self.store = TemplateStore(
            TemplateRecords(service.config.templates_dir),
            self._pages,
            launcher.layers,
            launcher.images,
            service.in_thread,
            service.config.max_templates_per_tenant,
            self._pool,
        )

    async def recover(self) -> None:
        """After adoption: take over the templates of an earlier daemon. What cannot be had back is
        removed, and with it the layers that neither a sandbox nor a template stands on."""
        for template in await self._service.in_thread(self.store.recover):
            await self.store.adopt(template)
            lease = template.record.lease
            if lease and lease not in self._service.leases.ids:
                await self.store.remove(template)
                _LOG.info("removed template %s: its lease ended", template.template_id)
                continue
            _LOG.info("took over template %s", template.template_id)
        for sandbox in self._service.population:
            if sandbox.record is not None:
                # Its next snapshot refers to the template's pages again.
                sandbox.template = self.store.get(sandbox.record.template)
                sandbox.count_for(sandbox.template)
                if sandbox.is_live:
                    sandbox.tracer = _tracer_of(sandbox)
                    await self._service.in_thread(sandbox.tracer.find)
                    self._pool.keep(sandbox.sandbox_id, sandbox.tracer.files)
        if removed := await self._service.in_thread(self._layers.remove_unheld):
            _LOG.info("removed %d layers that nothing stands on", len(removed))

    async def _end_of_lease(self, lease_id: str) -> None:
        for template in self.store.visible(0, {}):
            if template.record.lease == lease_id:
                await self.remove(template)

    async def close(self) -> None:
        """Remove all templates, and what would hold their pages beyond the daemon's life."""
        for template in self.store.visible(0, {}):
            await self.store.remove(template)
        await self._service.in_thread(self._pages.end)

    async def snapshot(
        self,
        sandbox: LiveSandbox,
        labels: Mapping[str, str],
        wish: CaptureWish = USUAL,
        *,
        recipe: str = "",
        on_fork: RecipeCommand | None = None,
        lease: str = "",
    ) -> Template:
        """The sandbox as it is now, as a template; the sandbox goes on."""
        self._service.leases.require(lease, sandbox.tenant_uid, OPERATION)
        self.store.admit(sandbox.tenant_uid)
        captured = await self._capture(sandbox, labels, wish)
        record = dataclasses.replace(captured.record, recipe=recipe, on_fork=on_fork, lease=lease)
        template = Template(record, captured.native)
        try:
            async with self._arriving(template):
                await self.store.add(template)
        except BaseException:
            await self._release(template.template_id)
            raise
        try:
            # It may have ended meanwhile; from here on its end finds this one.
            self._service.leases.require(lease, sandbox.tenant_uid, OPERATION)
        except VenusError:
            await self.remove(template)
            raise
        sandbox.tell("snapshot", template=template.template_id)
        async with self._slots:
            await self._service.in_thread(captured.native.collapse)
        return template

    async def fork(
        self,
        sandbox: LiveSandbox,
        wanted: CreateOptions,
        count: int,
        wish: CaptureWish = USUAL,
    ) -> list[LiveSandbox]:
        """`count` sandboxes that go on from where this one is now; all, or none."""
        checked_count(self._service.config, count)
        # Before the sandbox is stopped for nothing.
        self._creation.admit(sandbox.tenant_uid, count)
        template = await self._capture(sandbox, {}, wish)
        try:
            async with self._arriving(template):
                made = await self._creation.fork(template, wanted, count, ahead=False)
            sandbox.tell("forked", into=[each.sandbox_id for each in made])
            return made
        finally:
            await self._release(template.template_id)

    async def fork_template(
        self, template: Template, wanted: CreateOptions, count: int
    ) -> list[LiveSandbox]:
        """`count` sandboxes of the template; all, or none."""
        checked_count(self._service.config, count)
        async with self._in_use(template):
            return await self._creation.fork(template, wanted, count)

    async def remove(self, template: Template) -> None:
        """Forks of it live on."""
        self._last_used_s.pop(template.template_id, None)
        await self._creation.standing.drop(lambda shape: shape.template is template)
        await self.store.remove(template)

    @contextlib.asynccontextmanager
    async def _in_use(self, template: Template) -> AsyncIterator[None]:
        holder = f"fork-{secrets.token_hex(8)}"
        self._layers.hold(holder, template.record.layers)
        self._pool.add(template.template_id, template.files)
        self._last_used_s[template.template_id] = time.time()
        try:
            yield
        finally:
            self._pool.remove(template.template_id)
            await self._release(holder)

    @contextlib.asynccontextmanager
    async def _arriving(self, newcomer: Template) -> AsyncIterator[None]:
        """It counts, and idle templates go until the pool holds it too; or `LimitExceeded`."""
        self._pool.add(newcomer.template_id, newcomer.files)
        try:
            await self._make_room(newcomer)
            yield
        finally:
            self._pool.remove(newcomer.template_id)

    async def _make_room(self, newcomer: Template) -> None:
        limit = self._service.config.pool_size_bytes
        if self._pool.total_bytes <= limit:
            return
        named = self.store.visible(0, {})
        last_used_s = {
            each.template_id: self._last_used_s.get(each.template_id, each.record.created_at)
            for each in named
        }
        captured = {each.sandbox_id for each in self._service.population if each.gate.is_closed}
        eviction = decide_eviction(self._pool.entries(last_used_s, captured), limit)
        if not eviction.fits:
            self._untrack({newcomer.record.sandbox_id})
            raise LimitExceeded(
                "the page pool has no room for it",
                operation=OPERATION,
                object=newcomer.record.sandbox_id,
                cause=f"pool_size_bytes is {limit}; it would be {eviction.pool_bytes}, and what is "
                "in use stays",
            )
        for template in named:
            if template.template_id in eviction.template_ids:
                _LOG.info("evicted template %s: the page pool is full", template.template_id)
                self._service.counters.templates_evicted += 1
                await self.remove(template)
        self._untrack(eviction.template_ids)

    def _untrack(self, sandbox_ids: Collection[str]) -> None:
        for sandbox in self._service.population:
            if sandbox.sandbox_id not in sandbox_ids or sandbox.tracer is None:
                continue
            if not sandbox.gate.is_closed:  # or its tracer is at work for somebody else
                sandbox.tracer.end()
                self._pool.keep(sandbox.sandbox_id, {})

    def pool_bytes(self) -> int:
        """Memory of all templates, also of those whose forks alone still map it."""
        return self._pool.total_bytes

    async def _release(self, holder: str) -> None:
        if unheld := self._layers.let_go(holder):
            await asyncio.shield(self._service.in_thread(lambda: self._layers.remove(unheld)))

    async def _capture(
        self, sandbox: LiveSandbox, labels: Mapping[str, str], wish: CaptureWish
    ) -> Template:
        sandbox.require_running(OPERATION)
        began = time.perf_counter()
        # The slot first: nothing waits for the gate of a sandbox whose turn has not come.
        async with (
            self._slots,
            sandbox.gate.closed(sandbox.settles_for_capture, sandbox.sandbox_id),
        ):
            # Not before the gate is closed: what starts or ends until then counts.
            externals = gather_externals(sandbox)
            _set_typing_paused(sandbox, True)
            # Shielded: the gate stays closed until the sandbox runs again.
            work = asyncio.ensure_future(self._capture_now(sandbox, externals, labels, wish))
            work.add_done_callback(lambda _: externals.close())
            work.add_done_callback(lambda _: _set_typing_paused(sandbox, False))
            try:
                template = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait((work,))
                if work.exception() is None:
                    await self._release(work.result().template_id)
                raise
        self._service.counters.snapshots += 1
        self._service.instruments.snapshot.observe(time.perf_counter() - began)
        return await self._with_few_layers(template)

    async def _with_few_layers(self, template: Template) -> Template:
        """The topmost layers of the template become one when there are too many; the sandbox, which
        goes on, keeps its own."""
        layers = template.record.layers
        count = to_merge(len(layers), self._service.config.max_layers)
        if not count:
            return template
        async with self._merges:
            work = asyncio.ensure_future(
                self._service.in_thread(
                    lambda: self._layers.merge(layers[:count], template.template_id)
                )
            )
            try:
                merged = await asyncio.shield(work)
            except BaseException:
                await asyncio.wait((work,))
                await self._release(template.template_id)
                raise
        record = dataclasses.replace(template.record, layers=(merged, *layers[count:]))
        return Template(record, template.native)

    async def _capture_now(
        self,
        sandbox: LiveSandbox,
        externals: Externals,
        labels: Mapping[str, str],
        wish: CaptureWish,
    ) -> Template:
        launched, _ = sandbox.require_running(OPERATION)
        record, parent = sandbox.record, sandbox.template
        assert record is not None
        template_id = f"tp-{secrets.token_hex(8)}"
        lower = launched.layers
        tracer = sandbox.tracer = sandbox.tracer or _tracer_of(sandbox)
        generation, last_exec = sandbox.exec_ids
        try:
            captured = await self._service.in_thread(
                lambda: capture(
                    self._layers,
                    sandbox.sandbox_id,
                    tracer,
                    externals.descriptors,
                    None if parent is None else parent.native,
                    template_id,
                    wish,
                )
            )
            # No less than the sandbox, which may be gone as soon as its gate is open.
            self._layers.hold(template_id, lower)
        except CaptureCut:
            self._service.give_up(sandbox, EndReason.CAPTURE_CUT)
            await self._release(template_id)
            raise
        except VenusError:
            await self._release(template_id)
            # It may have been destroyed meanwhile, which is then what to say.
            sandbox.require_running(OPERATION)
            raise
        finally:
            # What is gone with a tracer; more than before it keeps only after a capture.
            self._pool.keep(sandbox.sandbox_id, tracer.files)
        template = Template(
            TemplateRecord(
                template_id=template_id,
                tenant_uid=sandbox.tenant_uid,
                image=record.image,
                layers=(captured.layer, *lower),
                limits=Limits(
                    record.memory_bytes, record.pids, record.cpu_cores, record.disk_bytes
                ),
                env=record.env,
                cwd=record.cwd,
                user=record.user,
                sandbox_id=sandbox.sandbox_id,
                parent=record.template,
                created_at=time.time(),
                labels=dict(labels),
                counts=captured.native.counts,
                commands=surviving_commands(externals, captured.native),
                exec_generation=generation,
                last_exec=last_exec,
            ),
            captured.native,
        )
        if wish.again:
            tracer.files = template.files
            self._pool.keep(sandbox.sandbox_id, tracer.files)
        return template


def _set_typing_paused(sandbox: LiveSandbox, paused: bool) -> None:
    for running in sandbox.execs.values():
        running.set_typing_paused(paused)


def _tracer_of(sandbox: LiveSandbox) -> Tracer:
    launched = sandbox.require_live(OPERATION)
    return Tracer(launched.control_path.parent, launched.init_pid, launched.init_pidfd)
