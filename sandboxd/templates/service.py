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
from collections import Counter
from collections.abc import AsyncIterator, Mapping

from sandboxd.bounds import CreateOptions, checked_count
from sandboxd.creation import Creation
from sandboxd.errors import LimitExceeded, VenusError
from sandboxd.keeper import PoolKeeper
from sandboxd.launch import Launcher
from sandboxd.launch_request import Limits
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService
from sandboxd.templates.capture import (
    OPERATION,
    Externals,
    capture,
    gather_externals,
    surviving_commands,
)
from sandboxd.templates.pages import KeptPages
from sandboxd.templates.pool import PagePool, PoolEntry, decide_eviction
from sandboxd.templates.recipe import RecipeCommand
from sandboxd.templates.records import TemplateRecords
from sandboxd.templates.store import TemplateStore
from sandboxd.templates.template import Template, TemplateRecord

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
        self._newcomers: dict[str, Template] = {}
        self._being_forked: Counter[str] = Counter()
        self._last_used_s: dict[str, float] = {}
        self.store = TemplateStore(
            TemplateRecords(service.config.templates_dir),
            self._pages,
            launcher.layers,
            launcher.images,
            service.in_thread,
            service.config.max_templates_per_tenant,
        )

    async def recover(self) -> None:
        """After adoption: take over the templates of an earlier daemon. What cannot be had back is
        removed, and with it the layers that neither a sandbox nor a template stands on."""
        for template in await self._service.in_thread(self.store.recover):
            await self.store.adopt(template)
            _LOG.info("took over template %s", template.template_id)
        for sandbox in self._service.population:
            if sandbox.record is not None:
                # Its next snapshot refers to the template's pages again.
                sandbox.template = self.store.get(sandbox.record.template)
        if removed := await self._service.in_thread(self._layers.remove_unheld):
            _LOG.info("removed %d layers that nothing stands on", len(removed))

    async def close(self) -> None:
        """Remove all templates, and what would hold their pages beyond the daemon's life."""
        for template in self.store.visible(0, {}):
            await self.store.remove(template)
        await self._service.in_thread(self._pages.end)

    async def snapshot(
        self,
        sandbox: LiveSandbox,
        labels: Mapping[str, str],
        *,
        recipe: str = "",
        on_fork: RecipeCommand | None = None,
    ) -> Template:
        """The sandbox as it is now, as a template; the sandbox goes on."""
        self.store.admit(sandbox.tenant_uid)
        captured = await self._capture(sandbox, labels)
        record = dataclasses.replace(captured.record, recipe=recipe, on_fork=on_fork)
        template = Template(record, captured.native)
        try:
            async with self._arriving(template):
                await self.store.add(template)
        except BaseException:
            await self._release(template.template_id)
            raise
        await self._service.in_thread(captured.native.collapse)
        return template

    async def fork(
        self, sandbox: LiveSandbox, wanted: CreateOptions, count: int
    ) -> list[LiveSandbox]:
        """`count` sandboxes that go on from where this one is now; all, or none."""
        checked_count(self._service.config, count)
        # Before the sandbox is stopped for nothing.
        self._creation.admit(sandbox.tenant_uid, count)
        template = await self._capture(sandbox, {})
        try:
            async with self._arriving(template):
                return await self._creation.fork(template, wanted, count, ahead=False)
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
        self._being_forked[template.template_id] += 1
        self._last_used_s[template.template_id] = time.time()
        try:
            yield
        finally:
            self._being_forked[template.template_id] -= 1
            if self._being_forked[template.template_id] == 0:
                del self._being_forked[template.template_id]
            await self._release(holder)

    @contextlib.asynccontextmanager
    async def _arriving(self, newcomer: Template) -> AsyncIterator[None]:
        """It counts, and idle templates go until the pool holds it too; or `LimitExceeded`."""
        self._newcomers[newcomer.template_id] = newcomer
        try:
            await self._make_room(newcomer)
            yield
        finally:
            del self._newcomers[newcomer.template_id]

    async def _make_room(self, newcomer: Template) -> None:
        limit = self._service.config.pool_size_bytes
        eviction = decide_eviction(self._pool_entries(), limit)
        if not eviction.fits:
            raise LimitExceeded(
                "the page pool has no room for it",
                operation=OPERATION,
                object=newcomer.record.sandbox_id,
                cause=f"pool_size_bytes is {limit}; it would be {eviction.pool_bytes}, and what is "
                "in use stays",
            )
        for template in self.store.visible(0, {}):
            if template.template_id in eviction.template_ids:
                _LOG.info("evicted template %s: the page pool is full", template.template_id)
                await self.remove(template)

    def pool_bytes(self) -> int:
        """Memory of all templates, also of those whose forks alone still map it."""
        return PagePool(self._pool_entries()).total_bytes

    def _pool_entries(self) -> list[PoolEntry]:
        """Also of templates that have no name, or have lost it: their forks map their pages."""
        used = dict(self._newcomers)
        for sandbox in self._service.population:
            if sandbox.template is not None:
                used[sandbox.template.template_id] = sandbox.template
        everything = {each.template_id: each for each in self.store.visible(0, {})} | used
        return [
            PoolEntry(
                template_id,
                each.files,
                self._last_used_s.get(template_id, each.record.created_at),
                template_id in used or template_id in self._being_forked,
            )
            for template_id, each in everything.items()
        ]

    async def _release(self, holder: str) -> None:
        if unheld := self._layers.let_go(holder):
            await asyncio.shield(self._service.in_thread(lambda: self._layers.remove(unheld)))

    async def _capture(self, sandbox: LiveSandbox, labels: Mapping[str, str]) -> Template:
        sandbox.require_running(OPERATION)
        async with sandbox.gate.closed(sandbox.is_transferring, sandbox.sandbox_id):
            # Not before the gate is closed: what starts or ends until then counts.
            externals = gather_externals(sandbox)
            # Shielded: the gate stays closed until the sandbox runs again.
            work = asyncio.ensure_future(self._capture_now(sandbox, externals, labels))
            work.add_done_callback(lambda _: externals.close())
            try:
                template = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait((work,))
                if work.exception() is None:
                    await self._release(work.result().template_id)
                raise
        self._service.counters.snapshots += 1
        return template

    async def _capture_now(
        self, sandbox: LiveSandbox, externals: Externals, labels: Mapping[str, str]
    ) -> Template:
        launched, _ = sandbox.require_running(OPERATION)
        record, parent = sandbox.record, sandbox.template
        assert record is not None
        template_id = f"tp-{secrets.token_hex(8)}"
        lower = launched.layers
        if len(lower) >= self._service.config.max_layers:
            raise LimitExceeded(
                "the sandbox stands on too many layers",
                operation=OPERATION,
                object=sandbox.sandbox_id,
                cause=f"max_layers is {self._service.config.max_layers}",
            )
        generation, last_exec = sandbox.exec_ids
        registry = self._service.registry
        registry.set_capturing(sandbox.sandbox_id, True)
        try:
            captured = await self._service.in_thread(
                lambda: capture(
                    self._layers,
                    sandbox.sandbox_id,
                    launched.init_pid,
                    externals.descriptors,
                    None if parent is None else parent.native,
                    template_id,
                )
            )
            # No less than the sandbox, which may be gone as soon as its gate is open.
            self._layers.hold(template_id, lower)
        except VenusError:
            await self._release(template_id)
            # It may have been destroyed meanwhile, which is then what to say.
            sandbox.require_running(OPERATION)
            raise
        finally:
            registry.set_capturing(sandbox.sandbox_id, False)
        return Template(
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
