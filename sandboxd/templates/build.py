"""Templates from recipes: each is built once, however many ask for it at the same time."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from sandboxd import file_ops
from sandboxd.creation import Creation
from sandboxd.errors import BuildFailed, Conflict, VenusError
from sandboxd.exec_session import RunningExec
from sandboxd.file_ops import FileTarget
from sandboxd.images import ImageStore
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService
from sandboxd.templates import commands
from sandboxd.templates.build_log import BuildLog
from sandboxd.templates.build_records import BuildRecord, BuildRecords
from sandboxd.templates.capture import CaptureWish
from sandboxd.templates.recipe import READY_PAUSE_S, Recipe, RecipeFile, WarmCommand
from sandboxd.templates.service import TemplateService
from sandboxd.templates.template import Template

OPERATION = "build template"
_MAX_SHOWN = 1000  # of a command, in the log


@dataclass(eq=False)
class Build:
    """A build that runs, or has just ended."""

    tenant_uid: int
    recipe: Recipe
    digest: str
    log: BuildLog
    build_id: str = field(default_factory=lambda: f"bd-{secrets.token_hex(8)}")
    created_at: float = field(default_factory=time.time)
    task: asyncio.Task[Template] = field(init=False)

    def begin(self, step: str, argv: Sequence[str]) -> str:
        """Say in the log what comes; returns the step."""
        self.log.add(f"{step}: {shlex.join(argv)[:_MAX_SHOWN]}\n".encode(errors="replace"))
        return step

    def failed(self, step: str, cause: str) -> BuildFailed:
        """The error to raise."""
        return BuildFailed(
            f"a step failed; build {self.build_id} has the log",
            operation=OPERATION,
            object=step,
            cause=cause,
        )

    async def result(self) -> Template:
        """`BuildFailed` says at which step, with the end of what it wrote; nothing is left then.
        Whoever goes away while waiting takes it from nobody else."""
        return await asyncio.shield(self.task)


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
        config = service.config
        self.failed = BuildRecords(
            config.builds_dir, config.max_build_logs_per_tenant, config.max_build_logs
        )
        self._building: dict[tuple[int, str], Build] = {}

    async def build(self, tenant_uid: int, recipe: Recipe) -> Template:
        """The template of the recipe: one that exists, or is being built, or a new one."""
        found = await self.start(tenant_uid, recipe)
        return found if isinstance(found, Template) else await found.result()

    async def start(self, tenant_uid: int, recipe: Recipe) -> Template | Build:
        """The template of the recipe if there is one, else the build that makes it."""
        base = None
        if recipe.template:
            base = self._templates.store.find(tenant_uid, recipe.template, OPERATION)
            tenant_uid = base.record.tenant_uid
            origin = base.template_id
        else:
            origin = await self._image_identity(recipe.options.image)
        digest = recipe.digest(origin)
        if (known := self._templates.store.of_recipe(tenant_uid, digest)) is not None:
            return known
        key = (tenant_uid, digest)
        build = self._building.get(key)
        if build is None:
            self._templates.store.admit(tenant_uid)
            log = BuildLog(self._service.config.max_build_log_bytes)
            build = self._building[key] = Build(tenant_uid, recipe, digest, log)
            build.task = asyncio.ensure_future(self._build(build, base, origin))
            build.task.add_done_callback(lambda task: self._ended(key, task))
        return build

    def running(self, peer_uid: int) -> list[Build]:
        """The peer's own, or all for root."""
        return [each for each in self._building.values() if peer_uid in (0, each.tenant_uid)]

    async def _image_identity(self, name: str) -> str:
        """What names the content: another image of the same name is another origin."""
        image = await self._service.in_thread(lambda: self._images.get(name))
        return f"{image.name} {image.digest} {image.created_at}"

    def _ended(self, key: tuple[int, str], task: asyncio.Task[Template]) -> None:
        build = self._building.pop(key)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, VenusError):
            build.log.add(f"failed: {error}\n".encode(errors="replace"))
            record = BuildRecord(
                build.build_id,
                build.tenant_uid,
                build.digest,
                build.created_at,
                time.time(),
                error.to_json()["error"],
            )
            self.failed.write(record, build.log.content().decode(errors="replace"))
        build.log.end()

    async def _build(self, build: Build, base: Template | None, origin: str) -> Template:
        recipe = build.recipe
        if base is None:
            sandbox = await self._creation.create(build.tenant_uid, recipe.options)
        else:
            [sandbox] = await self._templates.fork_template(base, recipe.options, 1)
        try:
            # The sandbox holds its image from here on; until here it could be another.
            if base is None and await self._image_identity(recipe.options.image) != origin:
                raise Conflict(
                    "the image was replaced meanwhile",
                    operation=OPERATION,
                    object=recipe.options.image,
                )
            await self._carry_out(sandbox, recipe, build)
            return await self._templates.snapshot(
                sandbox,
                recipe.labels,
                recipe=build.digest,
                on_fork=recipe.on_fork,
                wish=CaptureWish(again=False),
            )
        finally:
            await asyncio.shield(self._service.destroy(sandbox))

    async def _carry_out(self, sandbox: LiveSandbox, recipe: Recipe, build: Build) -> None:
        for file in recipe.files:
            await self._write(sandbox, file, build)
        for number, command in enumerate(recipe.setup):
            what = build.begin(f"setup command {number}", command.argv)
            end = await commands.run(
                sandbox, command.argv, OPERATION, command.timeout_s, on_output=build.log.add
            )
            if not end.ok:
                raise build.failed(what, end.describe())
        for number, warm in enumerate(recipe.warm):
            await self._warm_up(sandbox, warm, f"warm command {number}", build)

    async def _write(self, sandbox: LiveSandbox, file: RecipeFile, build: Build) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield file.content

        try:
            target = FileTarget(sandbox, file.path, "")
            await file_ops.write(target, file.mode, body(), max_bytes=len(file.content))
        except VenusError as error:
            raise build.failed(f"file {file.path}", str(error)) from error

    async def _warm_up(
        self, sandbox: LiveSandbox, warm: WarmCommand, what: str, build: Build
    ) -> None:
        build.begin(what, warm.argv)
        running = await commands.start(sandbox, warm.argv, OPERATION, None, stream_stdin=True)
        running.keep()
        deadline = time.monotonic() + warm.timeout_s
        said = ""
        while True:
            # One that ends well may have left a process in the background.
            ended_badly = running.exited is not None and running.exited.exit_code != 0
            if ended_badly or running.lost:
                raise build.failed(what, f"it ended before it was ready; {_written(running)}")
            if warm.ready is None:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise build.failed(what, f"not ready in {warm.timeout_s:g} s; its check: {said}")
            end = await commands.run(
                sandbox, warm.ready, OPERATION, left_s, on_output=build.log.add
            )
            if end.ok:
                return
            said = end.describe()
            await asyncio.sleep(READY_PAUSE_S)


def _written(running: RunningExec) -> str:
    rings = [pipe.ring for pipe in (running.stdout, running.stderr) if pipe is not None]
    text = b"".join(ring.content() for ring in rings if ring is not None)
    return f"it wrote: {text[-commands.KEPT_LOG_BYTES :].decode(errors='replace').strip()}"
