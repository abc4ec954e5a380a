"""Bounds of the kernel that thousands of sandboxes meet: raised for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

KERNEL = Path("/proc/sys/kernel")


@contextlib.contextmanager
def raised_for(tasks: int) -> Iterator[list[str]]:
    """So many processes and threads fit, beside those of others; yields what was changed."""
    changed: dict[str, str] = {}
    try:
        for name in ("pid_max", "threads-max"):
            was = (KERNEL / name).read_text().strip()
            # Half, because pids are given out in turn, and a search for a free one takes time.
            if int(was) < 2 * tasks:
                (KERNEL / name).write_text(str(2 * tasks))
                changed[name] = was
        yield list(changed)
    finally:
        for name, was in changed.items():
            (KERNEL / name).write_text(was)
