"""What overlayfs writes into an upper directory besides files, and where a path leads through it.

A name that is gone is a *whiteout*. A directory is *opaque* when nothing shines through from the
layers below, or has a *redirect* when it was renamed: what it was made of lies at another path of
the layers below. Paths here are tuples of names, from the root of a layer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass

OVERLAY = "trusted.overlay."
_OPAQUE, _REDIRECT, _METACOPY = (f"{OVERLAY}{name}" for name in ("opaque", "redirect", "metacopy"))
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

LayerPath = tuple[bytes, ...]


@dataclass(frozen=True)
class Marks:
    """Of one directory."""

    opaque: bool = False
    redirect: bytes = b""

    def below(self, name: bytes, parent: LayerPath | None) -> LayerPath | None:
        """Where the layers below have what shines through; None: nothing does. `parent`: the same
        of the directory that it is in."""
        if self.opaque:
            return None
        if self.redirect.startswith(b"/"):
            return tuple(part for part in self.redirect.split(b"/") if part)
        return None if parent is None else (*parent, self.redirect or name)


def read_marks(directory_fd: int) -> Marks:
    """`OSError` for a mark that nothing here makes."""
    marks = {_OPAQUE: b"", _REDIRECT: b""}
    for name in marks:
        with contextlib.suppress(OSError):
            marks[name] = os.getxattr(directory_fd, name)
    if marks[_OPAQUE] not in (b"", b"y"):
        raise OSError(errno.EUCLEAN, f"unknown mark {_OPAQUE} = {marks[_OPAQUE]!r}")
    return Marks(marks[_OPAQUE] == b"y", marks[_REDIRECT])


def write_marks(directory_fd: int, marks: Marks) -> None:
    """Replace both."""
    for name, value in ((_OPAQUE, b"y" if marks.opaque else b""), (_REDIRECT, marks.redirect)):
        if value:
            os.setxattr(directory_fd, name, value)
            continue
        try:
            os.removexattr(directory_fd, name)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise


def is_whiteout(status: os.stat_result) -> bool:
    """Whether the name is gone."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def make_whiteout(directory_fd: int, name: bytes) -> None:
    """The name must be free."""
    os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory_fd)


def require_whole(file_name: bytes, names: list[str]) -> None:
    """`OSError` for a file without its content, which needs a feature that is off."""
    if _METACOPY in names:
        raise OSError(errno.EUCLEAN, "a file without its content", os.fsdecode(file_name))


def status_of(directory_fd: int, name: bytes) -> os.stat_result | None:
    """None: there is nothing of that name."""
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def resolve(root_fd: int, path: LayerPath) -> tuple[bool, LayerPath | None]:
    """Follows a path of the layer: whether a directory is there, and where the layers below have
    what shines through (None: nothing does)."""
    below: LayerPath | None = ()
    with contextlib.ExitStack() as stack:
        at: int | None = root_fd
        for name in path:
            status = None if at is None else status_of(at, name)
            if at is None or status is None:
                at = None
                below = None if below is None else (*below, name)
                continue
            if not stat.S_ISDIR(status.st_mode):
                return False, None
            at = os.open(name, OPEN_DIRECTORY, dir_fd=at)
            stack.callback(os.close, at)
            below = read_marks(at).below(name, below)
        return at is not None, below
