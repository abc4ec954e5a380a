"""`sandbox="venus"` for Inspect (`inspect-ai`), which finds this module by its entry point.

A sample gets a sandbox of its own, which goes when the sample has ended, also by cancellation.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import posixpath
import shlex
from collections.abc import Iterator
from typing import Any, Literal, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel

from sandboxd.client import AsyncSandbox, FileType, VenusError
from sandboxd.errors import ExecFailed
from sandboxd.protocol import DEFAULT_SOCKET, SOCKET_ENV
from sandboxd.providers.inspect_config import VenusSandboxConfig
from sandboxd.providers.inspect_exec import execute, not_started
from sandboxd.providers.translation import as_os_errors, is_unavailable

logger = logging.getLogger(__name__)

MADE_BY = {"made-by": "inspect-ai"}


@sandboxenv(name="venus")
class VenusSandboxEnvironment(SandboxEnvironment):
    """One sandbox of sandboxd."""

    def __init__(self, sandbox: AsyncSandbox, cwd: str, socket: str | None) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._cwd = cwd
        self._socket = socket

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, Any],
    ) -> dict[str, SandboxEnvironment]:
        options = VenusSandboxConfig.of(config).model_dump(exclude_none=True)
        sample = str(metadata.get("__sample_id__", ""))
        labels = MADE_BY | {"task": task_name[:1024], "sample": sample[:1024]}
        # A create that is cut in the middle might leave a sandbox whose id nobody knows.
        with anyio.CancelScope(shield=True):
            sandbox, command = await AsyncSandbox.start("pwd", metadata=labels, **options)
            try:
                cwd = (await command.wait()).stdout.removesuffix("\n")
            except VenusError:
                await sandbox.kill()
                raise
        return {"default": cls(sandbox, cwd, options.get("socket"))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        with anyio.CancelScope(shield=True):
            for environment in environments.values():
                sandbox = environment.as_type(cls)._sandbox
                try:
                    async with sandbox:
                        pass  # leaving it kills it
                except VenusError as error:
                    logger.warning("sandbox %s was not removed: %s", sandbox.sandbox_id, error)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """`inspect sandbox cleanup venus [ID]`: what a killed Inspect has left."""
        for info in await AsyncSandbox.list(MADE_BY):
            if id in (None, info.id):
                async with await AsyncSandbox.connect(info.id):
                    print(f"removing sandbox {info.id}")

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return VenusSandboxConfig(**config)

    def default_polling_interval(self) -> float:
        return 0.2

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        if not await self._sandbox.is_running():
            raise ConnectionError(f"sandbox {self._sandbox.sandbox_id} is not running")
        socket = self._socket or os.environ.get(SOCKET_ENV, DEFAULT_SOCKET)
        as_user = ["--user", user] if user else []
        shell = ["exec", "-i", *as_user, self._sandbox.sandbox_id, "/bin/sh", "-i"]
        return SandboxConnection(
            type="venus",
            command=shlex.join(["venus-sandbox", "--socket", socket, *shell]),
            container=self._sandbox.sandbox_id,
        )

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """As Inspect says. Nothing is tried twice, and the daemon bounds what runs at once.

        Of each stream the last `MAX_EXEC_OUTPUT_SIZE` bytes are kept.
        """
        cwd = None if cwd is None else self._absolute(cwd)
        try:
            return await execute(self._sandbox, cmd, input, cwd, env, user, timeout)
        except ExecFailed as error:
            return not_started(cmd[0], user, error)
        except VenusError as error:
            if is_unavailable(error):
                raise SandboxUnavailableError(str(error)) from error
            raise

    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = self._absolute(file)
        with _file_errors(file):
            with contextlib.suppress(FileNotFoundError), as_os_errors(file):
                await self._checked_size(path, file, 0o200)
            await self._sandbox.files.write(path, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        path = self._absolute(file)
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        content = bytearray()
        with _file_errors(file):
            size = await self._checked_size(path, file, 0o400)
            # It may grow, and files of the kernel say that they are empty.
            if size <= limit:
                async for chunk in await self._sandbox.files.read(path, "stream"):
                    content += chunk
                    if len(content) > limit:
                        break
        if max(size, len(content)) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else bytes(content)

    async def _checked_size(self, path: str, file: str, permission: int) -> int:
        """Inspect wants a directory told from a file, and a file whose owner took its own
        permission away left alone, also by root, as its Docker sandboxes do."""
        entry = await self._sandbox.files.stat(path, follow=True)
        if entry.type is FileType.DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        if entry.type is FileType.FILE and not entry.mode & permission:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
        return entry.size_bytes

    def _absolute(self, path: str) -> str:
        return posixpath.join(self._cwd, path)


@contextlib.contextmanager
def _file_errors(file: str) -> Iterator[None]:
    try:
        with as_os_errors(file):
            yield
    except VenusError as error:
        if is_unavailable(error):
            raise SandboxUnavailableError(str(error)) from error
        raise
