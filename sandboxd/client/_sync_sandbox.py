"""`Sandbox` and `Daemon`, for threads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from sandboxd.client import _calls
from sandboxd.client._data import Data, pieces
from sandboxd.client._http import DEFAULT_REQUEST_TIMEOUT_S
from sandboxd.client._sync_commands import Commands
from sandboxd.client._sync_files import Files
from sandboxd.client._sync_transport import SyncTransport
from sandboxd.client.errors import ConnectionLost
from sandboxd.client.types import DaemonInfo, ImageInfo, SandboxInfo, SandboxMetrics
from sandboxd.errors import NotFound, SandboxGone, error_from_json

Socket = str | os.PathLike[str] | None


class Sandbox:
    """One sandbox. As a context manager it is killed at the end of the block.

    `socket` is the daemon's; by default $VENUS_SOCKET or /run/venus/sandboxd.sock.
    """

    def __init__(self, transport: SyncTransport, info: SandboxInfo) -> None:
        self._transport = transport
        self._info = info
        self.commands = Commands(transport, info.id)
        self.files = Files(transport, info.id)

    @classmethod
    def create(
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
        transport = SyncTransport(socket)
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
            return cls(transport, transport.call(call, timeout_s=request_timeout))
        except BaseException:
            transport.close()
            raise

    @classmethod
    def connect(cls, sandbox_id: str, *, socket: Socket = None) -> Self:
        """A sandbox that exists already."""
        transport = SyncTransport(socket)
        try:
            return cls(transport, transport.call(_calls.get_sandbox(sandbox_id)))
        except BaseException:
            transport.close()
            raise

    @staticmethod
    def list(
        metadata: Mapping[str, str] | None = None, *, socket: Socket = None
    ) -> list[SandboxInfo]:
        """The caller's sandboxes (root: all), or those with all these labels."""
        with Daemon(socket) as daemon:
            return daemon.list_sandboxes(metadata)

    @property
    def sandbox_id(self) -> str:
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """As it was when this object was made; `get_info` asks again."""
        return self._info

    def get_info(self) -> SandboxInfo:
        self._info = self._transport.call(_calls.get_sandbox(self.sandbox_id))
        return self._info

    def is_running(self) -> bool:
        try:
            return self.get_info().state == "running"
        except (NotFound, SandboxGone):
            return False

    def metrics(self) -> SandboxMetrics:
        return self._transport.call(_calls.get_metrics(self.sandbox_id))

    def set_timeout(self, timeout: float | None) -> None:
        """A new time to live in seconds, counted from now; None removes the deadline."""
        self._transport.call(_calls.set_ttl(self.sandbox_id, timeout))

    def kill(self) -> bool:
        """Ends the sandbox and deletes its files. False when it was gone already."""
        try:
            self._transport.call(_calls.kill_sandbox(self.sandbox_id))
        except (NotFound, SandboxGone):
            return False
        return True

    def close(self) -> None:
        """Closes the connections and leaves the sandbox running."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.kill()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sandbox_id} image={self._info.image}>"


class Daemon:
    """What concerns the daemon as a whole: its figures, its sandboxes, its images."""

    def __init__(self, socket: Socket = None) -> None:
        self._transport = SyncTransport(socket)

    @property
    def socket(self) -> str:
        return self._transport.socket

    def info(self) -> DaemonInfo:
        return self._transport.call(_calls.daemon_info())

    def check_health(self) -> None:
        """Returns when the daemon answers, else raises."""
        self._transport.call(_calls.health(), timeout_s=10.0)

    def list_sandboxes(self, metadata: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        wanted = (metadata or {}).items()
        found = self._transport.call(_calls.list_sandboxes())
        return [info for info in found if wanted <= info.labels.items()]

    def list_images(self) -> list[ImageInfo]:
        return self._transport.call(_calls.list_images())

    def import_image_tar(self, name: str, tar: Data) -> ImageInfo:
        """Sends the tar of a root filesystem, in pieces. For root only."""
        return self._transport.call(_calls.put_image(name), content=pieces(tar), timeout_s=None)

    def import_image_directory(self, name: str, path: str | os.PathLike[str]) -> ImageInfo:
        """Copies a directory on the daemon's host; For root only."""
        return self._transport.call(
            _calls.import_image(name, os.path.abspath(path)), timeout_s=None
        )

    def build_base_image(
        self, name: str, *, suite: str | None = None, packages: Sequence[str] | None = None
    ) -> Iterator[str]:
        """Builds a Debian image with mmdebstrap; yields lines of progress. For root only."""
        call = _calls.build_base(name, suite, packages)
        with self._transport.stream(call, timeout_s=None) as chunks:
            yield from _progress(chunks)

    def remove_image(self, name: str) -> None:
        self._transport.call(_calls.remove_image(name))

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _progress(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines of a build, whose last one must be its result; an error is raised."""
    rest = b""
    finished = False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line:
                continue
            value = json.loads(line)
            if "error" in value:
                raise error_from_json(value)
            if "line" in value:
                yield str(value["line"])
            finished = "image" in value
    if not finished:
        raise ConnectionLost("the answer ended before the build did", operation="build image")
