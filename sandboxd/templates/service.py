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
from collections.abc import AsyncIterator, Mapping

from sandboxd.bounds import CreateOptions, checked_count
from sandboxd.creation import Creation
from sandboxd.errors import LimitExceeded, VenusError
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
from sandboxd.templates.recipe import RecipeCommand
from sandboxd.templates.records import TemplateRecords
from sandboxd.templates.store import TemplateStore
from sandboxd.templates.template import Template, TemplateRecord

_LOG = logging.getLogger("sandboxd")


class TemplateService:
    """Wired by the composition root beside `SandboxService`."""

    def __init__(self, service: SandboxService, creation: Creation, launcher: Launcher) -> None:
        self._service = service
        self._creation = creation
        self._layers = launcher.layers
        self._records = TemplateRecords(service.config.templates_dir)
        self.store = TemplateStore(
            self._records,
            launcher.layers,
            launcher.images,
            service.in_thread,
            service.config.max_templates_per_tenant,
        )

    async def recover(self) -> None:
        """After adoption: templates of an earlier daemon have lost their pages with it; they are
        removed, and with them the layers that no adopted sandbox stands on."""

        def clean() -> list[str]:
            self._records.open()
            self._records.clear()
            return self._layers.remove_unheld()

        if removed := await self._service.in_thread(clean):
            _LOG.info("removed %d layers that nothing stands on", len(removed))

    async def close(self) -> None:
        """Remove all templates, whose pages end with the daemon."""
        for template in self.store.visible(0, {}):
            await self.store.remove(template)

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
            await self.store.add(template)
        except BaseException:
            await self._release(template.template_id)
            raise
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
        layer = template.record.layers[0]
        await self._creation.standing.drop(lambda shape: layer in shape.layers)
        await self.store.remove(template)

    @contextlib.asynccontextmanager
    async def _in_use(self, template: Template) -> AsyncIterator[None]:
        holder = f"fork-{secrets.token_hex(8)}"
        self._layers.hold(holder, template.record.layers)
        try:
            yield
        finally:
            await self._release(holder)

    async def _release(self, holder: str) -> None:
        await asyncio.shield(self._service.in_thread(lambda: self._layers.release(holder)))

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
