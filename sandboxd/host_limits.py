"""Limits of the host that are made for one program or user, and here are met by many sandboxes."""

from __future__ import annotations

import contextlib
import logging
import resource
from pathlib import Path

_LOG = logging.getLogger("sandboxd")
DESCRIPTORS = 1 << 16
PIPE_PAGES_FILE = Path("/proc/sys/fs/pipe-user-pages-soft")
# The kernel's default for one user. A pipe has 16 unless it is told otherwise.
PIPE_PAGES_PER_SANDBOX = 16384


def raise_descriptor_limit() -> None:
    """Room for all that the bounds allow at once; without the right to it, what there is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(hard, DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


def raise_pipe_limit(max_sandboxes: int, file: Path = PIPE_PAGES_FILE) -> None:
    """As many pages of pipes as if each sandbox were a user of its own.

    To the kernel all sandboxes of a tenant are one user. Beyond the limit a new pipe holds two
    pages and cannot grow: programs that write more would stand still, and forks, whose pipes must
    be what they were, would fail. Pipes are charged to the sandbox's memory, which bounds them.

    It is never put back: what runs may rely on it, also after the daemon.
    """
    wanted = max_sandboxes * PIPE_PAGES_PER_SANDBOX
    try:
        if 0 < int(file.read_text()) < wanted:  # 0: there is no limit
            file.write_text(str(wanted))
    except OSError as error:
        _LOG.warning("the pipes of one tenant's sandboxes together stay limited: %s", error)
