"""Files that are replaced as a whole, so that a reader sees the old content or the new one."""

from __future__ import annotations

import os

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


def replace_file(
    path: str | os.PathLike[str], temporary: str | os.PathLike[str], content: bytes
) -> None:
    """Write `temporary`, which lies beside `path`, and rename it; root's alone. No fsync."""
    # By hand: this is on the way of every create, and a file object costs more than the writing.
    descriptor = os.open(temporary, _FLAGS, 0o600)
    try:
        if os.fstat(descriptor).st_size:  # of a write that was cut; truncating costs
            os.truncate(descriptor, 0)
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """A new file, which nobody reads before what it is part of is complete; root's alone."""
    descriptor = os.open(path, _FLAGS | os.O_EXCL, 0o600)
    try:
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def reserve_file(temporary: str | os.PathLike[str]) -> None:
    """Ahead of `replace_file`: to make a file takes longer than to write and rename it."""
    os.close(os.open(temporary, _FLAGS, 0o600))
