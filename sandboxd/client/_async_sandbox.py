"""`AsyncSandbox` and `AsyncDaemon`, for asyncio. The same surface as the synchronous ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from sandboxd.client import _calls
from sandboxd.client._async_commands import AsyncCommands
from sandboxd.client._async_files import AsyncFiles
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._data import AsyncData, async_pieces
from sandboxd.client._http import DEFAULT_REQUEST_TIMEOUT_S
from sandboxd.client._sync_sandbox import Socket
from sandboxd.client.types import DaemonInfo, ImageInfo, SandboxInfo, SandboxMetrics
from sandboxd.errors import NotFound, SandboxGone


class AsyncSandbox:
    """One sandbox. As a context manager it is killed at the end of the block.

    `socket` is the daemon's; by default $VENUS_SOCKET or /run/venus/sandboxd.sock. An instance
    belongs to the event loop in which it was made.
    """

    def __init__(self, transport: AsyncTransport, info: SandboxInfo) -> None:
        self._transport = transport
        self._info = info
        self.commands = AsyncCommands(transport, info.id)
        self.files = AsyncFiles(transport, info.id)

    @classmethod
    async def create(
        cls,
        image: str = "base",
        *,
        memory_bytes: int | None = None,
        pids: int | None = None,
        cpu_cores: float | None = None,
        disk_bytes: int | None = None,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        hostname: str | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        socket: Socket = None,
        request_timeout: float | None = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> Self:
        """Makes a sandbox. `timeout` in seconds is its time to live; None means until killed.

        What is None takes the daemon's default; `envs`, `cwd` and `user` are the defaults of
        its commands.
        """
        transport = AsyncTransport(socket)
        call = _calls.create_sandbox(
            image=image,
            memory_bytes=memory_bytes,
            pids=pids,
            cpu_cores=cpu_cores,
            disk_bytes=disk_bytes,
            env=envs,
            cwd=cwd,
            user=user,
            hostname=hostname,
            ttl_s=timeout,
            labels=metadata,
        )
        try:
            return cls(transport, await transport.call(call, timeout_s=request_timeout))
        except BaseException:
            await transport.close()
            raise

    @classmethod
    async def connect(cls, sandbox_id: str, *, socket: Socket = None) -> Self:
        """A sandbox that exists already."""
        transport = AsyncTransport(socket)
        try:
            return cls(transport, await transport.call(_calls.get_sandbox(sandbox_id)))
        except BaseException:
            await transport.close()
            raise

    @staticmethod
    async def list(
        metadata: Mapping[str, str] | None = None, *, socket: Socket = None
    ) -> list[SandboxInfo]:
        """The caller's sandboxes (root: all), or those with all these labels."""
        async with AsyncDaemon(socket) as daemon:
            return await daemon.list_sandboxes(metadata)

    @property
    def sandbox_id(self) -> str:
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """As it was when this object was made; `get_info` asks again."""
        return self._info

    async def get_info(self) -> SandboxInfo:
        self._info = await self._transport.call(_calls.get_sandbox(self.sandbox_id))
        return self._info

    async def is_running(self) -> bool:
        try:
            return (await self.get_info()).state == "running"
        except (NotFound, SandboxGone):
            return False

    async def metrics(self) -> SandboxMetrics:
        return await self._transport.call(_calls.get_metrics(self.sandbox_id))

    async def set_timeout(self, timeout: float | None) -> None:
        """A new time to live in seconds, counted from now; None removes the deadline."""
        await self._transport.call(_calls.set_ttl(self.sandbox_id, timeout))

    async def kill(self) -> bool:
        """Ends the sandbox and deletes its files. False when it was gone already."""
        try:
            await self._transport.call(_calls.kill_sandbox(self.sandbox_id))
        except (NotFound, SandboxGone):
            return False
        return True

    async def close(self) -> None:
        """Closes the connections and leaves the sandbox running."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.kill()
        finally:
            await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sandbox_id} image={self._info.image}>"


class AsyncDaemon:
    """What concerns the daemon as a whole: its figures, its sandboxes, its images."""

    def __init__(self, socket: Socket = None) -> None:
        self._transport = AsyncTransport(socket)

    @property
    def socket(self) -> str:
        return self._transport.socket

    async def info(self) -> DaemonInfo:
        return await self._transport.call(_calls.daemon_info())

    async def check_health(self) -> None:
        """Returns when the daemon answers, else raises."""
        await self._transport.call(_calls.health(), timeout_s=10.0)

    async def list_sandboxes(self, metadata: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        wanted = (metadata or {}).items()
        found = await self._transport.call(_calls.list_sandboxes())
        return [info for info in found if wanted <= info.labels.items()]

    async def list_images(self) -> list[ImageInfo]:
        return await self._transport.call(_calls.list_images())

    async def import_image_tar(self, name: str, tar: AsyncData) -> ImageInfo:
        """Sends the tar of a root filesystem, in pieces. For root only."""
        return await self._transport.call(
            _calls.put_image(name), content=async_pieces(tar), timeout_s=None
        )

    async def remove_image(self, name: str) -> None:
        await self._transport.call(_calls.remove_image(name))

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
