"""The sandboxes of one SWE-ReX server."""

from __future__ import annotations

import asyncio
import contextlib

from sandboxd.client import AsyncDaemon, AsyncLease, AsyncSandbox, ForkOptions, VenusError
from sandboxd.errors import LimitExceeded
from sandboxd.providers.swerex_sandbox import SwerexSandbox

MAX_SANDBOXES = 1024
MADE_BY = {"made-by": "swe-rex"}


class Sandboxes:
    """One for each name, made when it is first used."""

    def __init__(
        self, image: str | None, template: str | None, socket: str | None, options: ForkOptions
    ) -> None:
        self._image = image
        self._template = template
        self._socket = socket
        self._options = options
        self._lease: AsyncLease | None = None
        self._made: dict[str, asyncio.Task[SwerexSandbox]] = {}

    async def open(self) -> None:
        """What is made goes with this process, also when that is killed."""
        self._lease = await AsyncLease.create(metadata=MADE_BY, socket=self._socket)

    async def get(self, name: str) -> SwerexSandbox:
        """However many ask at once, one is made. It is gone with `close`, or its time to live."""
        task = self._made.get(name)
        if task is None:
            if len(self._made) >= MAX_SANDBOXES:
                raise LimitExceeded(f"there are {MAX_SANDBOXES} sandboxes already", object=name)
            task = asyncio.create_task(self._make(name), name=f"venus-swerex-{name}")
            self._made[name] = task
        try:
            return await asyncio.shield(task)
        except VenusError:
            if self._made.get(name) is task:
                del self._made[name]
            raise

    async def check(self, name: str) -> None:
        """Raises when the daemon, or a sandbox that was made, is not there."""
        if task := self._made.get(name):
            await (await asyncio.shield(task)).sandbox.get_info()
            return
        async with AsyncDaemon(self._socket) as daemon:
            await daemon.check_health()

    async def close(self, name: str) -> None:
        if task := self._made.pop(name, None):
            with contextlib.suppress(VenusError):
                await (await task).close()

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(name) for name in list(self._made)))
        if self._lease is not None:
            async with self._lease:
                pass  # leaving it releases it

    async def _make(self, name: str) -> SwerexSandbox:
        options = self._options.copy()
        options["metadata"] = {**(options.get("metadata") or {}), **MADE_BY, "name": name}
        if self._lease is not None:
            options["lease"] = self._lease
        sandbox, command = await AsyncSandbox.start(
            "pwd", self._image, template=self._template, socket=self._socket, **options
        )
        try:
            cwd = (await command.wait()).stdout.removesuffix("\n")
        except VenusError:
            await sandbox.kill()
            raise
        return SwerexSandbox(sandbox, cwd)
