"""Real pool keepers, and the ends of a daemon that talks to one."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxd.keeper import PoolKeeper
from sandboxd.keeper.pool_keeper import _SEALS as SEALS

WAIT_S = 20.0


def sealed_file(content: bytes) -> int:
    """What a template consists of; the caller closes it."""
    descriptor = os.memfd_create("test-extent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, 1 << 20, 0)


@contextmanager
def sealed_files(count: int, tag: str = "") -> Iterator[list[int]]:
    """Different ones, each with its number and `tag` in it."""
    files: list[int] = []
    try:
        files.extend(sealed_file(f"{tag}{number}".encode()) for number in range(count))
        yield files
    finally:
        for descriptor in files:
            os.close(descriptor)


def own_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Process:
    """A process that is not a child: its end is an event of its pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def ends(self, within_s: float = WAIT_S) -> bool:
        """Wait for it."""
        ready, _, _ = select.select([self._pidfd], [], [], within_s)
        return bool(ready)

    def close(self) -> None:
        os.close(self._pidfd)


def end_keeper(directory: Path) -> None:
    """Leave none behind, whatever a test did."""
    if directory.exists():
        keeper = PoolKeeper(directory)
        keeper.open()
        keeper.end()
