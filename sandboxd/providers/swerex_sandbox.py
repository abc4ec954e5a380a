"""What SWE-ReX's client asks of one sandbox."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

from sandboxd.client import AsyncSandbox, ExitReason
from sandboxd.errors import ExecFailed, errno_of
from sandboxd.providers.swerex_errors import SwerexError
from sandboxd.providers.swerex_models import (
    Action,
    BashInterrupt,
    Command,
    CommandResponse,
    CreateSession,
    Observation,
    ReadFile,
    WriteFile,
)
from sandboxd.providers.swerex_session import BashSession

MAX_SESSIONS = 64
MAX_FILE_BYTES = 256 << 20
"""Of a file that is read: it is one JSON string."""
_PIECE_BYTES = 256 << 10


class SwerexSandbox:
    """A sandbox and the shells in it. `cwd` is where paths begin that are not absolute."""

    def __init__(self, sandbox: AsyncSandbox, cwd: str) -> None:
        self.sandbox = sandbox
        self._cwd = cwd
        self._sessions: dict[str, BashSession] = {}
        self._starting: set[str] = set()

    async def create_session(self, request: CreateSession) -> str:
        """What the shell wrote while it started."""
        name = request.session
        if name in self._sessions or name in self._starting:
            raise SwerexError("SessionExistsError", f"session {name} already exists")
        if len(self._sessions) + len(self._starting) >= MAX_SESSIONS:
            raise SwerexError("SwerexException", f"there are {MAX_SESSIONS} sessions already")
        self._starting.add(name)
        try:
            session = await BashSession.start(
                self.sandbox, request.startup_source, request.startup_timeout
            )
        finally:
            self._starting.discard(name)
        self._sessions[name] = session
        return session.started_with

    async def run_in_session(self, action: Action) -> Observation:
        session = self._session(action.session)
        if isinstance(action, BashInterrupt):
            return await session.interrupt(action)
        return await session.run(action)

    async def close_session(self, name: str) -> None:
        session = self._session(name)
        del self._sessions[name]
        await session.close()

    async def close(self) -> None:
        """Removes the sandbox with all that runs in it."""
        async with self.sandbox:
            sessions = list(self._sessions.values())
            self._sessions.clear()
            await asyncio.gather(*(session.close() for session in sessions))

    def _session(self, name: str) -> BashSession:
        if name not in self._sessions:
            raise SwerexError("SessionDoesNotExistError", f"session {name!r} does not exist")
        return self._sessions[name]

    async def execute(self, command: Command) -> CommandResponse:
        """As `subprocess.run` would, in the sandbox."""
        words = [command.command] if isinstance(command.command, str) else command.command
        argv = ["/bin/sh", "-c", *words] if command.shell else words
        if command.merge_output_streams:
            argv = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *argv]
        try:
            done = await self.sandbox.commands.run(
                argv,
                envs=command.env,
                cwd=self._absolute(command.cwd or "."),
                timeout=command.timeout,
                check=False,
            )
        except ExecFailed as error:
            if (number := errno_of(error)) is None:
                raise
            raise OSError(number, f"{argv[0]!r}: {error}") from error
        if done.reason is ExitReason.TIMEOUT:
            message = f"Timeout ({command.timeout}s) exceeded while running command"
            raise SwerexError("CommandTimeoutError", message)
        code = done.exit.exit_code
        response = CommandResponse(
            stdout=done.stdout_bytes.decode("utf-8", "backslashreplace"),
            stderr=done.stderr_bytes.decode("utf-8", "backslashreplace"),
            exit_code=code if code is not None else -(done.signal or 0),
        )
        if command.check and response.exit_code != 0:
            message = (
                f"Command {command.command!r} failed with exit code {response.exit_code}. "
                f"Stdout:\n{response.stdout!r}\nStderr:\n{response.stderr!r}"
            )
            prefix = f"{command.error_msg}: " if command.error_msg else ""
            raise SwerexError("NonZeroExitCodeError", prefix + message)
        return response

    async def read_file(self, request: ReadFile) -> str:
        """As `Path.read_text` would: line ends become `\\n`."""
        content = bytearray()
        async for chunk in await self.sandbox.files.read(self._absolute(request.path), "stream"):
            content += chunk
            if len(content) > MAX_FILE_BYTES:
                raise OSError(f"{request.path!r} has more than {MAX_FILE_BYTES} bytes")
        encoding, errors = request.encoding or "utf-8", request.errors or "strict"
        return io.TextIOWrapper(io.BytesIO(content), encoding, errors).read()

    async def write_file(self, request: WriteFile) -> None:
        await self.sandbox.files.write(self._absolute(request.path), request.content)

    async def upload(self, file: BinaryIO, path: str) -> None:
        await self.sandbox.files.write(self._absolute(path), file)

    async def upload_zip(self, file: BinaryIO, path: str) -> None:
        """What the archive has comes below `path`; nothing of it gets out of there."""
        await self.sandbox.files.write_dir(self._absolute(path), _as_tar(file))

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._cwd, path))


def _as_tar(file: BinaryIO) -> Iterator[bytes]:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            header = tarfile.TarInfo(member.filename)
            header.mode = (member.external_attr >> 16) & 0o777 or 0o644
            if member.is_dir():
                header.type, header.mode = tarfile.DIRTYPE, header.mode | 0o700
                yield header.tobuf(tarfile.PAX_FORMAT)
                continue
            header.size = member.file_size
            yield header.tobuf(tarfile.PAX_FORMAT)
            with archive.open(member) as content:
                while piece := content.read(_PIECE_BYTES):
                    yield piece
            yield bytes(-member.file_size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
