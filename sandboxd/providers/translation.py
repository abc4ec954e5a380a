"""Errors of the client, as Python's own: what a framework expects of files and of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sandboxd.client import ConnectionLost, DaemonUnavailable, Exit, VenusError
from sandboxd.errors import NotFound, SandboxGone, errno_of


def is_unavailable(error: VenusError) -> bool:
    """The sandbox itself is not there to be asked, or its daemon is not."""
    if isinstance(error, DaemonUnavailable | ConnectionLost | SandboxGone):
        return True
    # Of a file the kernel says that it is not there, of a sandbox the daemon.
    return isinstance(error, NotFound) and errno_of(error) is None


def ended_with_sandbox(exit_: Exit) -> bool:
    """Nobody knows how the command would have ended: its sandbox went."""
    return exit_.exit_code is None and exit_.signal is None


@contextlib.contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Within the block, what the kernel refused about the file is raised as the `OSError` that
    Python has for it: `FileNotFoundError`, `IsADirectoryError`, `PermissionError` and so on."""
    try:
        yield
    except VenusError as error:
        number = errno_of(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), path) from error
