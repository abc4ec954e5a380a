"""Loop devices: one for the storage file, never two.

Two loop devices over one file have two page caches, and a filesystem mounted through both is
destroyed. So a device that is already attached (a killed daemon's, kept by the mounts of living
sandboxes) is found by the identity of the backing file and used again. The caller holds a lock
that makes find-then-attach one step.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

LOOP_CONFIGURE, LOOP_GET_STATUS64, LOOP_CTL_GET_FREE = 0x4C0A, 0x4C05, 0x4C82
LO_FLAGS_AUTOCLEAR = 4
_INFO64 = struct.Struct("=5Q4I64s64s32s2Q")
_CONFIG = struct.Struct("=2I")
_CONFIG_RESERVED = bytes(8 * 8)
ATTACH_ATTEMPTS = 16


@contextlib.contextmanager
def attached(file: Path) -> Iterator[Path]:
    """The loop device of `file`, attached if it was not.

    While the context lasts the device stays. Afterwards it stays as long as something is mounted
    from it, and is cleared by the kernel with the last unmount.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, device_fd = _find(descriptor) or _attach(descriptor, file)
        try:
            yield device
        finally:
            os.close(device_fd)
    finally:
        os.close(descriptor)


def find(file: Path) -> Path | None:
    """The loop device that is attached to `file`, if there is one."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = _find(descriptor)
    finally:
        os.close(descriptor)
    if found is None:
        return None
    os.close(found[1])
    return found[0]


def _find(file_fd: int) -> tuple[Path, int] | None:
    wanted = os.fstat(file_fd)
    for entry in sorted(Path("/sys/block").glob("loop*/loop")):
        device = Path("/dev") / entry.parent.name
        try:
            device_fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # its node is missing or it is being removed: not ours
        info = bytearray(_INFO64.size)
        try:
            fcntl.ioctl(device_fd, LOOP_GET_STATUS64, info)
        except OSError:  # detached in between
            os.close(device_fd)
            continue
        file_device, file_inode = _INFO64.unpack(info)[:2]
        if (file_device, file_inode) == (wanted.st_dev, wanted.st_ino):
            return device, device_fd
        os.close(device_fd)
    return None


def _attach(file_fd: int, file: Path) -> tuple[Path, int]:
    info = _INFO64.pack(
        0, 0, 0, 0, 0, 0, 0, 0, LO_FLAGS_AUTOCLEAR, bytes(file)[:63], b"", b"", 0, 0
    )
    config = bytearray(_CONFIG.pack(file_fd, 0) + info + _CONFIG_RESERVED)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        # The number that GET_FREE names may be taken by somebody else before it is configured.
        for _ in range(ATTACH_ATTEMPTS):
            device = Path(f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}")
            device_fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device_fd, LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device_fd)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device, device_fd
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device could be taken", str(file))
