"""Brings sandboxes up to where only the request for one can tell how it goes on.

A prepared sandbox has its namespaces, mounts, groups and init, the daemon has its link, and the
processes of its template, if it is one of a template, are built and wait to be released. Nothing of
it is on record yet.

Everything here runs on the event loop; the launcher's blocking calls run in the service's threads.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass

from sandboxd.launch import Launcher, LaunchRequest
from sandboxd.recovery import process_start_ticks
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService
from sandboxd.standing_plan import Shape
from sandboxd.templates.restore import HeldTree, build

# What a fork copies at once, rather than when it writes, would lie idle in every standing one.
MOST_COPIED_AHEAD_BYTES = 16 << 20


@dataclass(eq=False)
class Prepared:
    """Whoever has it owns the sandbox, and either completes or discards it."""

    sandbox: LiveSandbox
    request: LaunchRequest
    init_start_ticks: int
    tree: HeldTree | None = None
    """Absent: of an image, or not built yet."""

    def abandon(self) -> None:
        """What it has of a tree will not run; the sandbox must be dismantled."""
        tree, self.tree = self.tree, None
        if tree is not None:
            tree.abandon()


def new_id() -> str:
    """An id that no sandbox had before."""
    return f"sb-{secrets.token_hex(8)}"


class Preparation:
    """Makes, completes and discards prepared sandboxes."""

    def __init__(self, service: SandboxService, launcher: Launcher) -> None:
        self._service = service
        self._launcher = launcher

    async def begin(
        self, sandbox: LiveSandbox, shape: Shape, hostname: str | None = None
    ) -> Prepared:
        """Launch it and connect to its init; its host name is its id unless it is named. After an
        error there may be something to dismantle."""
        template = shape.template
        request = LaunchRequest(
            sandbox_id=sandbox.sandbox_id,
            image=shape.image,
            tenant_uid=shape.tenant_uid,
            limits=shape.limits,
            hostname=hostname or sandbox.sandbox_id,
            generation=str(uuid.uuid4()),
            layers=() if template is None else template.record.layers,
        )
        sandbox.template = template
        sandbox.launched = await self._service.in_thread(lambda: self._launcher.launch(request))
        await self._service.connect(sandbox, sandbox.launched)
        return Prepared(sandbox, request, process_start_ticks(sandbox.launched.init_pid) or 0)

    async def ahead(self, shape: Shape) -> Prepared:
        """A sandbox for somebody who has not asked yet."""
        sandbox = self._service.population.new(new_id(), shape.tenant_uid, shape.image)
        try:
            made = await self.begin(sandbox, shape)
            self._service.registry.reserve(sandbox.sandbox_id)
            template = shape.template
            if template is not None and _is_light(template.record.counts):
                await self._build(made)
        except BaseException:
            await self._service.dismantle(sandbox)
            raise
        return made

    async def complete(self, made: Prepared) -> None:
        """Returns when its processes run, as their template left them."""
        if made.sandbox.template is not None and made.tree is None:
            await self._build(made)
        tree, made.tree = made.tree, None
        if tree is not None:
            await tree.release()

    async def discard(self, made: Prepared) -> None:
        """Nothing of it is left; the sandbox may be begun again."""
        made.abandon()
        await self._service.dismantle(made.sandbox)

    async def _build(self, made: Prepared) -> None:
        sandbox = made.sandbox
        template, link = sandbox.template, sandbox.link
        assert template is not None and link is not None
        sandbox.continue_exec_ids(template.record.exec_generation, template.record.last_exec)
        made.tree = await build(sandbox, link, template)


def _is_light(counts: dict[str, int]) -> bool:
    return counts.get("copied_bytes", 0) <= MOST_COPIED_AHEAD_BYTES
