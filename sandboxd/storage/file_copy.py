"""One file of a tree whose shape a sandbox chose, copied with all that belongs to it.

Nothing is followed: what is copied is what stands under the name. Blocks are shared where the
filesystem can, holes stay holes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable

_FICLONE = 0x40049409
_NO_CLONE = (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)


def copy_file(
    source_dir: int, name: bytes, target_dir: int, new_name: bytes, keeps: Callable[[str], bool]
) -> None:
    """Anything but a directory. `keeps`: which extended attributes come over."""
    status = os.stat(name, dir_fd=source_dir, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        _copy_regular(source_dir, name, target_dir, new_name)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source_dir), new_name, dir_fd=target_dir)
    else:
        os.mknod(new_name, stat.S_IFMT(status.st_mode), status.st_rdev, dir_fd=target_dir)
    source = f"/proc/self/fd/{source_dir}/".encode() + name
    target = f"/proc/self/fd/{target_dir}/".encode() + new_name
    copy_attributes(source, target, status, keeps)
    copy_times(target, status)


def copy_attributes(
    source: bytes | int,
    target: bytes | int,
    status: os.stat_result,
    keeps: Callable[[str], bool],
) -> None:
    """Owner, mode and extended attributes."""
    link = stat.S_ISLNK(status.st_mode)
    # First the owner: changing it takes bits of the mode and capabilities away.
    if isinstance(target, int):
        os.chown(target, status.st_uid, status.st_gid)
    else:
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not link:
        os.chmod(target, stat.S_IMODE(status.st_mode))
    options = {} if isinstance(source, int) else {"follow_symlinks": False}
    wanted = {each for each in os.listxattr(source, **options) if keeps(each)}
    for each in os.listxattr(target, **options):
        if keeps(each) and each not in wanted:
            os.removexattr(target, each, **options)
    for each in wanted:
        os.setxattr(target, each, os.getxattr(source, each, **options), **options)


def copy_times(target: bytes | int, status: os.stat_result) -> None:
    """Last, because everything else changes them."""
    times = (status.st_atime_ns, status.st_mtime_ns)
    if isinstance(target, int):
        os.utime(target, ns=times)
    else:
        os.utime(target, ns=times, follow_symlinks=False)


def _copy_regular(source_dir: int, name: bytes, target_dir: int, new_name: bytes) -> None:
    with contextlib.ExitStack() as stack:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source_dir)
        stack.callback(os.close, source)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        target = os.open(new_name, flags, 0o600, dir_fd=target_dir)
        stack.callback(os.close, target)
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NO_CLONE:
                raise
            _copy_data(source, target)


def _copy_data(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.truncate(target, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        at = os.lseek(source, start, os.SEEK_HOLE)
        while start < at:
            copied = os.copy_file_range(source, target, at - start, start, start)
            if copied == 0:
                raise OSError(errno.EIO, "the file ends early")
            start += copied
