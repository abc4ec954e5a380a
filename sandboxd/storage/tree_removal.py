"""Removal of a tree whose shape a sandbox chose.

Invariants: no symbolic link is followed, no other filesystem is entered (a busy mount makes the
removal fail, it is never emptied), and neither memory nor open descriptors grow with the depth of
the tree: each subdirectory is first moved directly under the top, then emptied there.
"""

from __future__ import annotations

import errno
import itertools
import os

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove `name` (file, link or directory) in an open directory; no error if it is absent."""
    try:
        top_fd = os.open(name, _OPEN_DIRECTORY, dir_fd=parent_fd)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent_fd)
        return
    try:
        device = os.fstat(top_fd).st_dev
        if os.fstat(parent_fd).st_dev != device:
            raise OSError(errno.EXDEV, "the tree is a mount; nothing was removed", name)
        _empty(top_fd, device)
    finally:
        os.close(top_fd)
    os.rmdir(name, dir_fd=parent_fd)


def _empty(top_fd: int, device: int) -> None:
    unique = itertools.count()
    pending = _unlink_files(top_fd, device)
    while pending:
        name = pending.pop()
        directory_fd = os.open(name, _OPEN_DIRECTORY, dir_fd=top_fd)
        try:
            for child in _unlink_files(directory_fd, device):
                # The sandbox may have chosen such a name for a directory of its own at the top.
                while _exists(top_fd, target := f".removing-{next(unique)}"):
                    pass
                os.rename(child, target, src_dir_fd=directory_fd, dst_dir_fd=top_fd)
                pending.append(target)
        finally:
            os.close(directory_fd)
        os.rmdir(name, dir_fd=top_fd)


def _unlink_files(directory_fd: int, device: int) -> list[str]:
    """Unlink all in a directory but its subdirectories; returns their names."""
    subdirectories = []
    with os.scandir(directory_fd) as entries:
        children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in children:
        if not is_directory:
            os.unlink(name, dir_fd=directory_fd)
            continue
        if os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_dev != device:
            raise OSError(errno.EXDEV, "another filesystem is mounted inside the tree", name)
        subdirectories.append(name)
    return subdirectories


def _exists(directory_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
