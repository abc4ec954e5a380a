"""Finds the keeper of a directory, or starts one.

The directory is locked (flock) as long as its keeper lives: whoever starts one takes the lock,
binds the socket, and hands both on. So a socket in a directory that is not locked is a dead
keeper's, and two daemons that start at the same time end up with the same keeper.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from sandboxd.errors import InternalError, OperationTimeout
from sandboxd.keeper.connection import SOCKET_NAME, TIMEOUT_S, Connection
from sandboxd.keeper.wire import VERSION, Kind
from sandboxd.storage.mounts import Mount, current_mounts

KEEPER_BINARY = Path(__file__).parents[1] / "_bin" / "pool-keeper"
_BACKLOG = 8
_RETRY_S = 0.01


class Found(enum.Enum):
    """How `connect` came to its keeper."""

    RUNNING = "it was running"
    STARTED = "it was started"
    REPLACED = "one of another version was ended, with all it held"


def connect(
    directory: Path, *, idle_s: float, binary: Path = KEEPER_BINARY
) -> tuple[Connection, Found]:
    """A connection to the keeper of the directory; both are made where they are missing."""
    deadline = time.monotonic() + TIMEOUT_S
    found = Found.RUNNING
    while time.monotonic() < deadline:
        lock_fd = _try_lock(directory)
        if lock_fd is not None:
            try:
                _start(directory, lock_fd, idle_s, binary)
            finally:
                os.close(lock_fd)
            found = Found.STARTED if found is Found.RUNNING else found
        # Fails, too, when a keeper is just ending, or another daemon is just starting one.
        with contextlib.suppress(FileNotFoundError, ConnectionError):
            connection = _greet(directory)
            if connection is not None:
                return connection, found
            found = Found.REPLACED
        time.sleep(_RETRY_S)
    raise OperationTimeout(
        "there is a pool keeper, but it does not answer",
        operation="connect to pool keeper",
        object=str(directory),
        cause=f"within {TIMEOUT_S:.0f} s; whoever holds the lock of this directory is it",
    )


def unit_groups(mounts: Iterable[Mount]) -> list[Path]:
    """Where a process leaves the systemd unit that it was started in, if it was: the roots of the
    hierarchies by which systemd ends units. On other machines they change nothing."""
    return [
        Path(mount.target) / "cgroup.procs"
        for mount in mounts
        if mount.root == "/"
        and (
            mount.filesystem == "cgroup2"
            or (mount.filesystem == "cgroup" and "name=systemd" in mount.super_options)
        )
    ]


def _try_lock(directory: Path) -> int | None:
    """The lock of a directory that has no keeper, made if it is missing; None if it has one."""
    directory.mkdir(mode=0o700, exist_ok=True)
    try:
        lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # a keeper has just ended
        return None
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock_fd), os.stat(directory)):
            return lock_fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock_fd)
    return None


def _start(directory: Path, lock_fd: int, idle_s: float, binary: Path) -> None:
    path = directory / SOCKET_NAME
    path.unlink(missing_ok=True)  # a dead keeper's
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listener:
        listener.bind(os.fspath(path))
        listener.listen(_BACKLOG)
        numbers = (lock_fd, listener.fileno(), round(idle_s * 1000))
        groups = map(os.fspath, unit_groups(current_mounts()))
        try:
            # It ends as soon as the keeper, its child, is on its own.
            done = subprocess.run(
                [os.fspath(binary), os.fspath(directory), *map(str, numbers), *groups],
                pass_fds=numbers[:2],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_started(binary, str(error)) from error
        if done.returncode != 0:
            raise _not_started(binary, f"it ended with {done.returncode}")


def _not_started(binary: Path, cause: str) -> InternalError:
    return InternalError(
        "the pool keeper cannot be started",
        operation="start pool keeper",
        object=str(binary),
        cause=cause,
    )


def _greet(directory: Path) -> Connection | None:
    """None when the keeper was of another version; then it is gone."""
    connection = Connection(directory)
    try:
        if connection.ask(Kind.HELLO).version == VERSION:
            return connection
        connection.ask(Kind.END)
        connection.wait_until_closed()
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None
