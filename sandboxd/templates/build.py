"""Templates from recipes: each is built once, however many ask for it at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from sandboxd import file_ops
from sandboxd.creation import Creation
from sandboxd.errors import BuildFailed, VenusError
from sandboxd.exec_session import RunningExec
from sandboxd.file_ops import FileTarget
from sandboxd.images import ImageStore
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService
from sandboxd.templates import commands
from sandboxd.templates.capture import CaptureWish
from sandboxd.templates.recipe import READY_PAUSE_S, Recipe, RecipeFile, WarmCommand
from sandboxd.templates.service import TemplateService
from sandboxd.templates.template import Template

OPERATION = "build template"


class TemplateBuilder:
    """Builds, and remembers what is being built. The event loop's."""

    def __init__(
        self,
        service: SandboxService,
        creation: Creation,
        templates: TemplateService,
        images: ImageStore,
    ) -> None:
        self._service = service
        self._creation = creation
        self._templates = templates
        self._images = images
        self._building: dict[tuple[int, str], asyncio.Task[Template]] = {}

    async def build(self, tenant_uid: int, recipe: Recipe) -> Template:
        """The template of the recipe: one that exists, or is being built, or a new one.

        `BuildFailed` says at which step, with the end of what it wrote; nothing is left then.
        """
        base = None
        if recipe.template:
            base = self._templates.store.find(tenant_uid, recipe.template, OPERATION)
            tenant_uid = base.record.tenant_uid
            origin = base.template_id
        else:
            image = await self._service.in_thread(lambda: self._images.get(recipe.options.image))
            origin = f"{image.name} {image.digest} {image.created_at}"
        digest = recipe.digest(origin)
        if (known := self._templates.store.of_recipe(tenant_uid, digest)) is not None:
            return known
        key = (tenant_uid, digest)
        task = self._building.get(key)
        if task is None:
            self._templates.store.admit(tenant_uid)
            task = asyncio.ensure_future(self._build(tenant_uid, recipe, base, digest))
            self._building[key] = task
            task.add_done_callback(lambda _: self._building.pop(key))
        # Whoever else waits for it must not lose it when this one goes away.
        return await asyncio.shield(task)

    async def _build(
        self, tenant_uid: int, recipe: Recipe, base: Template | None, digest: str
    ) -> Template:
        if base is None:
            sandbox = await self._creation.create(tenant_uid, recipe.options)
        else:
            [sandbox] = await self._templates.fork_template(base, recipe.options, 1)
        try:
            await self._carry_out(sandbox, recipe)
            return await self._templates.snapshot(
                sandbox,
                recipe.labels,
                recipe=digest,
                on_fork=recipe.on_fork,
                wish=CaptureWish(again=False),
            )
        finally:
            await asyncio.shield(self._service.destroy(sandbox))

    async def _carry_out(self, sandbox: LiveSandbox, recipe: Recipe) -> None:
        for file in recipe.files:
            await self._write(sandbox, file)
        for number, command in enumerate(recipe.setup):
            end = await commands.run(sandbox, command.argv, OPERATION, command.timeout_s)
            if not end.ok:
                raise _failed(f"setup command {number}", end.describe())
        for number, warm in enumerate(recipe.warm):
            await self._warm_up(sandbox, warm, f"warm command {number}")

    async def _write(self, sandbox: LiveSandbox, file: RecipeFile) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield file.content

        try:
            target = FileTarget(sandbox, file.path, "")
            await file_ops.write(target, file.mode, body(), max_bytes=len(file.content))
        except VenusError as error:
            raise _failed(f"file {file.path}", str(error)) from error

    async def _warm_up(self, sandbox: LiveSandbox, warm: WarmCommand, what: str) -> None:
        running = await commands.start(sandbox, warm.argv, OPERATION, None, stream_stdin=True)
        running.keep()
        deadline = time.monotonic() + warm.timeout_s
        said = ""
        while True:
            # One that ends well may have left a process in the background.
            ended_badly = running.exited is not None and running.exited.exit_code != 0
            if ended_badly or running.lost:
                raise _failed(what, f"it ended before it was ready; {_written(running)}")
            if warm.ready is None:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise _failed(what, f"not ready in {warm.timeout_s:g} s; its check: {said}")
            end = await commands.run(sandbox, warm.ready, OPERATION, left_s)
            if end.ok:
                return
            said = end.describe()
            await asyncio.sleep(READY_PAUSE_S)


def _written(running: RunningExec) -> str:
    rings = [pipe.ring for pipe in (running.stdout, running.stderr) if pipe is not None]
    text = b"".join(ring.content() for ring in rings if ring is not None)
    return f"it wrote: {text[-commands.KEPT_LOG_BYTES :].decode(errors='replace').strip()}"


def _failed(step: str, cause: str) -> BuildFailed:
    return BuildFailed("a step failed", operation=OPERATION, object=step, cause=cause)
