"""`AsyncSandbox` and `AsyncTemplate`, for asyncio. The same surface as the synchronous ones."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from sandboxd.client import _calls, _command_calls, _template_calls
from sandboxd.client._async_commands import AsyncCommands
from sandboxd.client._async_daemon import AsyncDaemon
from sandboxd.client._async_files import AsyncFiles
from sandboxd.client._async_handle import AsyncCommandHandle
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._http import DEFAULT_REQUEST_TIMEOUT_S, Socket
from sandboxd.client._lines import ProgressLines
from sandboxd.client._port_forward import LOCALHOST, AsyncPortForward
from sandboxd.client.types import (
    ForkOptions,
    HasLeaseId,
    SandboxInfo,
    SandboxMetrics,
    TemplateInfo,
    lease_id_of,
)
from sandboxd.errors import NotFound, SandboxGone, VenusError
from sandboxd.protocol import UPGRADE_TO_TCP, OnExternal, StdinMode


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
        image: str | None = None,
        *,
        template: str | AsyncTemplate | None = None,
        socket: Socket = None,
        request_timeout: float | None = DEFAULT_REQUEST_TIMEOUT_S,
        **options: Unpack[ForkOptions],
    ) -> Self:
        """Makes a sandbox, of an image (`base`, unless named) or of a template.

        Options: `memory_bytes`, `pids`, `cpu_cores` and `disk_bytes` are its limits; `envs`, `cwd`
        and `user` the defaults of its commands; `timeout` in seconds its time to live, without
        which it lives until killed; `hostname`; `metadata`, its labels; `lease`, with which it
        goes. What is None or absent takes the daemon's default, or the template's.
        """
        transport = AsyncTransport(socket)
        call = _calls.create_sandbox(options, image=image, template=_template_id(template))
        try:
            return cls(transport, await transport.call(call, timeout_s=request_timeout))
        except BaseException:
            await transport.close()
            raise

    @classmethod
    async def start(
        cls,
        cmd: str | Sequence[str],
        image: str | None = None,
        *,
        template: str | AsyncTemplate | None = None,
        remove: bool = False,
        command_timeout: float | None = None,
        stdin: bool = False,
        max_output_bytes: int | None = None,
        socket: Socket = None,
        **options: Unpack[ForkOptions],
    ) -> tuple[Self, AsyncCommandHandle]:
        """Makes a sandbox and starts a command in it, in one request: the sandbox, and a handle as
        `commands.run` gives it with `background`. The fastest way to a command's output.

        Sandbox and options are as in `create`: `timeout` is the sandbox's time to live; `envs`,
        `cwd` and `user` are its defaults, and so the command's. `command_timeout` in seconds kills
        the command's whole tree; `stdin` keeps its input open for `send_stdin`. With `remove`, the
        sandbox goes when the command has ended, or as soon as its handle is left. A command that
        cannot be started leaves no sandbox behind.

            sandbox, command = await AsyncSandbox.start("make test", template=template, remove=True)
            async with sandbox, command:
                print((await command.wait()).stdout)
        """
        transport = AsyncTransport(socket)
        call = _command_calls.start_sandbox(
            cmd,
            options,
            image=image,
            template=_template_id(template),
            remove=remove,
            timeout_s=command_timeout,
            stdin=StdinMode.STREAM if stdin else StdinMode.NULL,
            max_output_bytes=max_output_bytes,
        )
        try:
            handle = await AsyncCommandHandle(transport, call, command_timeout)._start()
            return cls(transport, handle._made()), handle
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
        metadata: Mapping[str, str] | None = None,
        *,
        hostname: str | None = None,
        socket: Socket = None,
    ) -> list[SandboxInfo]:
        """The caller's sandboxes (root: all), or those with all these labels and this host name;
        the oldest first."""
        async with AsyncDaemon(socket) as daemon:
            return await daemon.list_sandboxes(metadata, hostname=hostname)

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

    async def pause(self) -> None:
        """Stops all that runs in it. Until it is resumed commands and files answer `Conflict`;
        its time to live goes on."""
        self._info = await self._transport.call(_calls.pause_sandbox(self.sandbox_id))

    async def resume(self) -> None:
        """Lets it go on."""
        self._info = await self._transport.call(_calls.resume_sandbox(self.sandbox_id))

    async def connect_port(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a TCP port that a program in the sandbox listens on, at its loopback or
        anywhere: its streams. `Unreachable` when nothing listens there.
        It is the caller's to close, and ends with the sandbox; a pause only holds it up."""
        return await self._transport.upgrade(
            _calls.connect_port(self.sandbox_id, port), UPGRADE_TO_TCP
        )

    def forward_port(
        self,
        port: int,
        local_port: int = 0,
        *,
        host: str = LOCALHOST,
        on_error: Callable[[VenusError], None] | None = None,
    ) -> AsyncPortForward:
        """A port of this machine that leads to a port of the sandbox, within the block:

            async with sandbox.forward_port(8000) as forward:
                host, port = forward.address

        `local_port` 0 takes any that is free. `on_error` is told why a connection could not be
        made."""
        return AsyncPortForward(self._transport, self.sandbox_id, port, local_port, host, on_error)

    async def snapshot(
        self,
        metadata: Mapping[str, str] | None = None,
        *,
        on_external: OnExternal = "refuse",
        lease: str | HasLeaseId | None = None,
    ) -> AsyncTemplate:
        """The sandbox as it is now, as a template; the sandbox goes on. `on_external="reset"`:
        connections to outside, with which no snapshot is possible, come back reset. With a `lease`
        the template goes when that one ends."""
        call = _template_calls.snapshot_sandbox(
            self.sandbox_id, metadata, on_external, lease_id_of(lease)
        )
        info = await self._transport.call(call, timeout_s=None)
        return AsyncTemplate(AsyncTransport(self._transport.socket), info)

    async def fork(
        self,
        count: int = 1,
        *,
        on_external: OnExternal = "refuse",
        **options: Unpack[ForkOptions],
    ) -> builtins.list[Self]:
        """`count` sandboxes that go on from where this one is now; all of them, or an error.
        `on_external` as of `snapshot`."""
        call = _template_calls.fork_sandbox(self.sandbox_id, count, on_external, options)
        made = await self._transport.call(call, timeout_s=None)
        return [type(self)(AsyncTransport(self._transport.socket), info) for info in made]

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


class AsyncTemplate:
    """A sandbox that was captured, to be forked any number of times. Lives until `remove`."""

    def __init__(self, transport: AsyncTransport, info: TemplateInfo) -> None:
        self._transport = transport
        self._info = info

    @classmethod
    async def build(
        cls,
        recipe: Mapping[str, object],
        metadata: Mapping[str, str] | None = None,
        *,
        on_log: Callable[[str], None] | None = None,
        socket: Socket = None,
    ) -> Self:
        """The template of a recipe: built now, or found built. `recipe` is the body of the request
        `build_template` (docs/operations.md); its files' contents are in base64. `on_log` is called
        with each line that the build says."""
        transport = AsyncTransport(socket)
        try:
            if on_log is None:
                call = _template_calls.build_template(recipe, metadata)
                return cls(transport, await transport.call(call, timeout_s=None))
            progress = ProgressLines("build template", "template")
            follow = _template_calls.follow_build(recipe, metadata)
            async with transport.stream(follow, timeout_s=None) as chunks:
                async for chunk in chunks:
                    for line in progress.feed(chunk):
                        on_log(line)
            return cls(transport, TemplateInfo.from_json(progress.result()))
        except BaseException:
            await transport.close()
            raise

    @classmethod
    async def get(cls, template_id: str, *, socket: Socket = None) -> Self:
        """A template that exists already."""
        transport = AsyncTransport(socket)
        try:
            call = _template_calls.get_template(template_id)
            return cls(transport, await transport.call(call))
        except BaseException:
            await transport.close()
            raise

    @staticmethod
    async def list(
        metadata: Mapping[str, str] | None = None, *, socket: Socket = None
    ) -> list[TemplateInfo]:
        """The caller's templates (root: all), or those with all these labels."""
        transport = AsyncTransport(socket)
        try:
            return await transport.call(_template_calls.list_templates(metadata))
        finally:
            await transport.close()

    @property
    def template_id(self) -> str:
        return self._info.id

    @property
    def info(self) -> TemplateInfo:
        return self._info

    async def fork(
        self, count: int = 1, **options: Unpack[ForkOptions]
    ) -> builtins.list[AsyncSandbox]:
        """`count` sandboxes of the template; all of them, or an error."""
        call = _template_calls.fork_template(self.template_id, count, options)
        made = await self._transport.call(call, timeout_s=None)
        return [AsyncSandbox(AsyncTransport(self._transport.socket), info) for info in made]

    async def remove(self) -> bool:
        """Forgets the template; forks of it live on. False when it was gone already."""
        try:
            await self._transport.call(_template_calls.remove_template(self.template_id))
        except NotFound:
            return False
        return True

    async def close(self) -> None:
        """Closes the connections and keeps the template."""
        await self._transport.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.template_id} of {self._info.sandbox}>"


def _template_id(template: str | AsyncTemplate | None) -> str | None:
    return template.template_id if isinstance(template, AsyncTemplate) else template
