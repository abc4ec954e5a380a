"""The process that captures one sandbox: `sandbox-tracer`, started for the first capture of it.

A capture must not end in the middle, so it is not the daemon that does it. The tracer outlives the
daemon: when that is killed in the middle of a capture, the tracer gives up, puts everything back,
and waits for the next daemon on the socket in the sandbox's run directory. What it knows of the
sandbox's pages it keeps for the next capture. It ends with the sandbox.

The file `capture` beside the socket says whether threads of the sandbox stand where a capture put
them: it is not empty from before the first is stopped until the last runs again, and locked as long
as a tracer is at it. Not empty and not locked means that a tracer was killed in the middle.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandboxd import _native
from sandboxd.errors import InternalError
from sandboxd.keeper.start import unit_groups
from sandboxd.protocol import OnExternal
from sandboxd.storage.mounts import current_mounts

TRACER_BINARY = Path(__file__).parent / "_bin" / "sandbox-tracer"
SOCKET_NAME = "tracer.sock"
MARK_NAME = "capture"
START_TIMEOUT_S = 20.0
GIVE_UP_TIMEOUT_S = 30.0
"""How long a tracer that lost its daemon may take to put everything back."""
_RETRY_S = 0.01
_END_TIMEOUT_MS = 5000


class CaptureCut(InternalError):
    """The tracer was killed in the middle: the sandbox cannot go on."""


class Tracer:
    """Of one sandbox; it may not have been started yet. Blocking; one call at a time."""

    def __init__(self, run_dir: Path, init_pid: int, init_pidfd: int) -> None:
        self._run_dir = run_dir
        self._init_pid = init_pid
        self._init_pidfd = init_pidfd
        self._native: _native.Tracer | None = None
        self.files: Mapping[tuple[int, int], int] = {}
        """What it keeps of the pool for the next capture, at most: files → bytes of memory."""

    def find(self) -> None:
        """Connect to the one that an earlier daemon started, if there is one."""
        try:
            self._native = _native.Tracer(self._connect())
        except (FileNotFoundError, ConnectionError, _native.TracerGone):
            return
        except _native.NativeError:  # of another version
            end_of_other = self._connect()
            _native.end_tracer(end_of_other)
            os.close(end_of_other)
            return
        self.files = self._native.kept

    def capture(
        self,
        externals: Sequence[int],
        while_stopped: Callable[[], object],
        parent: _native.Template | None,
        *,
        keep: bool,
        on_external: OnExternal,
    ) -> _native.Template:
        """See `_native.capture`. `keep`: there may be another one of this sandbox.

        After `CaptureCut` the sandbox must be removed; whatever else is raised, it goes on.
        """
        stopped = False

        def on_stopped() -> object:
            nonlocal stopped
            stopped = True
            return while_stopped()

        for may_try_again in (True, False):
            native = self._native
            if native is None or native.gone:
                native = self._native = self._start()
            try:
                return native.capture(
                    externals, on_stopped, parent, keep=keep, on_external=on_external
                )
            except _native.TracerGone as error:
                self.files = {}
                if self._mark().stat().st_size:
                    raise self._cut() from error
                if stopped or not may_try_again:
                    raise
        raise AssertionError("not reached")

    def end(self) -> None:
        """It forgets what it keeps."""
        self.files = {}
        if self._native is not None:
            self._native.end()
            self._native = None

    def wait_gone(self) -> None:
        """After the end of the sandbox, which is its own."""
        if self._native is not None:
            self._native.wait_until_gone(_END_TIMEOUT_MS)

    def _mark(self) -> Path:
        return self._run_dir / MARK_NAME

    def _connect(self) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.connect(os.fspath(self._run_dir / SOCKET_NAME))
            return connection.detach()

    def _start(self) -> _native.Tracer:
        path = self._run_dir / SOCKET_NAME
        path.unlink(missing_ok=True)  # a dead one's
        mark_fd = os.open(self._mark(), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC
            ) as listener:
                listener.bind(os.fspath(path))
                listener.listen(4)
                inherited = (listener.fileno(), mark_fd, self._init_pidfd)
                groups = map(os.fspath, unit_groups(current_mounts()))
                # It ends as soon as the tracer, its child, is on its own.
                done = subprocess.run(
                    [
                        os.fspath(TRACER_BINARY), os.fspath(self._run_dir),
                        *map(str, (*inherited, self._init_pid)), *groups,
                    ],
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    timeout=START_TIMEOUT_S,
                    check=False,
                )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._not_started(str(error)) from error
        finally:
            os.close(mark_fd)
        if done.returncode != 0:
            raise self._not_started(f"it ended with {done.returncode}")
        return _native.Tracer(self._connect())

    def _cut(self) -> CaptureCut:
        return CaptureCut(
            "the capture was cut",
            operation="snapshot sandbox",
            object=self._run_dir.name,
            cause="its tracer was killed, and the sandbox cannot go on from where it stood",
        )

    def _not_started(self, cause: str) -> InternalError:
        return InternalError(
            "the process that captures the sandbox cannot be started",
            operation="snapshot sandbox",
            object=self._run_dir.name,
            cause=cause,
        )


def cut_captures(sandboxes_dir: Path) -> set[str]:
    """Ids of sandboxes whose tracer was killed in the middle. Waits for those that are still at it,
    because their daemon was. Blocking."""
    deadline = time.monotonic() + GIVE_UP_TIMEOUT_S
    return {
        mark.parent.name
        for mark in sandboxes_dir.glob(f"*/{MARK_NAME}")
        if mark.stat().st_size and not _put_back(mark, deadline)
    }


def _put_back(mark: Path, deadline: float) -> bool:
    with mark.open("rb") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_RETRY_S)
                continue
            return os.fstat(file.fileno()).st_size == 0
    return False
