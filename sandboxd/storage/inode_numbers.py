"""Numbers of files that are unique in a stack of btrfs subvolumes.

Every subvolume numbers its files from 257 on. To overlayfs all subvolumes are one filesystem, whose
numbers it shows as they are: a file of the upper directory and one of a layer below could show the
same device and number, and tar, diff, find, cp, and our own snapshots, would take the two for one.

So each upper directory begins above all that lie below it. A subvolume gives every new file the
next number, never one again while anything above it exists. When an upper is frozen, a file `top`
beside it tells the last one; the numbers of what lies below the layer are lower, by the same rule.
"""

from __future__ import annotations

import contextlib
import errno
import os

FIRST = 257
MOST_SKIPPED = 64
"""Each costs some 15 µs; a snapshot of the layer, which has the numbers already, some ms."""
_TOP, _BURIED = "top", "buried"
_FULL = (errno.EDQUOT, errno.ENOSPC)


def mark_top(volume_fd: int) -> None:
    """All files of the volume have lower numbers than `top` from here on."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_TOP, dir_fd=volume_fd)  # of an earlier time
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(_TOP, flags, 0o600, dir_fd=volume_fd))
    except OSError as error:
        # A sandbox may have filled its disk. Then nobody knows, which is no less right.
        if error.errno not in _FULL:
            raise


def skipped(layer_fd: int) -> int | None:
    """How many numbers an empty volume has to skip to be above the layer; None: unknown."""
    try:
        return os.stat(_TOP, dir_fd=layer_fd, follow_symlinks=False).st_ino - FIRST + 1
    except FileNotFoundError:
        return None


def skip(volume_fd: int, count: int) -> None:
    """Use up the next numbers of an empty volume."""
    for _ in range(count):
        os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=volume_fd))


def bury(volume_fd: int) -> None:
    """Make a writable snapshot of a layer an empty volume: what is in it stays, out of the way and
    at no cost, and with it the numbers that were given."""
    temporary = f"{_BURIED}.new"
    os.mkdir(temporary, 0o700, dir_fd=volume_fd)
    for name in os.listdir(volume_fd):
        if name != temporary:
            os.rename(name, f"{temporary}/{name}", src_dir_fd=volume_fd, dst_dir_fd=volume_fd)
    os.rename(temporary, _BURIED, src_dir_fd=volume_fd, dst_dir_fd=volume_fd)
