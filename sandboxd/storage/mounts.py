"""mount(2), umount2(2) and the reading of mountinfo, for the host's side of a node.

Only host paths that root alone can write are ever given to these functions; nothing here resolves
a path that a sandbox controls.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import cffi

MS_NOSUID, MS_NODEV, MS_NOATIME = 2, 4, 1024
UMOUNT_NOFOLLOW = 8

_ffi = cffi.FFI()
_ffi.cdef(
    """
    int mount(const char *source, const char *target, const char *type, unsigned long flags,
              const void *data);
    int umount2(const char *target, int flags);
    int syncfs(int fd);
    """
)
_libc = _ffi.dlopen(None)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo: what this process sees mounted where."""

    mount_id: int
    device: str
    """`major:minor` of the mounted filesystem."""
    root: str
    """Directory inside the filesystem that is mounted."""
    target: str
    filesystem: str
    source: str
    super_options: frozenset[str]


_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


def _unescaped(field: str) -> str:
    return _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in the order of the kernel's table (later ones lie on top)."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            raise ValueError(f"not a line of mountinfo: {line!r}")
        mounts.append(
            Mount(
                mount_id=int(fields[0]),
                device=fields[2],
                root=_unescaped(fields[3]),
                target=_unescaped(fields[4]),
                filesystem=tail[0],
                source=_unescaped(tail[1]),
                super_options=frozenset(tail[2].split(",")),
            )
        )
    return mounts


def current_mounts() -> list[Mount]:
    """The mounts of this process's mount namespace."""
    return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))


def mounts_at(target: Path) -> list[Mount]:
    """What is mounted exactly on `target`, the topmost last."""
    return [mount for mount in current_mounts() if mount.target == str(target)]


def mount(source: str, target: Path, filesystem: str, flags: int, data: str) -> None:
    """mount(2); raises `OSError` naming the target."""
    if _libc.mount(source.encode(), os.fsencode(target), filesystem.encode(), flags, data.encode()):
        raise OSError(_ffi.errno, os.strerror(_ffi.errno), str(target))


def unmount(target: Path) -> None:
    """umount2(2), never lazily: a lazy unmount would hide that somebody still uses the tree."""
    if _libc.umount2(os.fsencode(target), UMOUNT_NOFOLLOW):
        raise OSError(_ffi.errno, os.strerror(_ffi.errno), str(target))


def sync_filesystem(path: Path) -> None:
    """syncfs(2): all that was written to the filesystem of `path` is on its disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor):
            raise OSError(_ffi.errno, os.strerror(_ffi.errno), str(path))
    finally:
        os.close(descriptor)
