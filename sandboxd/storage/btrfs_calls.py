"""The btrfs ioctls that uppers need: subvolumes, quotas and what a subvolume uses.

Structures are those of <linux/btrfs.h>. No subprocess: `btrfs subvolume create` costs ten times
the ioctl.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import struct

_IOC_WRITE, _IOC_READ = 1, 2


def _ioctl_number(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


SUBVOL_CREATE = _ioctl_number(_IOC_WRITE, 14, 4096)
SNAP_DESTROY = _ioctl_number(_IOC_WRITE, 15, 4096)
TREE_SEARCH = _ioctl_number(_IOC_READ | _IOC_WRITE, 17, 4096)
INO_LOOKUP = _ioctl_number(_IOC_READ | _IOC_WRITE, 18, 4096)
SNAP_CREATE_V2 = _ioctl_number(_IOC_WRITE, 23, 4096)
QUOTA_CTL = _ioctl_number(_IOC_READ | _IOC_WRITE, 40, 16)
QGROUP_LIMIT = _ioctl_number(_IOC_READ, 43, 48)

_VOLUME_ARGS = struct.Struct("=q4088s")
_VOLUME_ARGS_V2 = struct.Struct("=q2Q32x4040s")
_SNAPSHOT_READ_ONLY = 2
_QUOTA_ARGS = struct.Struct("=2Q")
_LIMIT_ARGS = struct.Struct("=6Q")
_SEARCH_KEY = struct.Struct("=7Q4I4Q")
_SEARCH_HEADER = struct.Struct("=3Q2I")
_QGROUP_INFO = struct.Struct("=5Q")

SUBVOLUME_ROOT_INODE = 256
_QUOTA_TREE, _QGROUP_INFO_KEY = 8, 242
_LIMIT_REFERENCED = 1
_UNBOUNDED = 2**64 - 1


class QuotaKind(enum.Enum):
    """How the filesystem accounts for the bytes of a subvolume."""

    SIMPLE = 4
    """Charged to the subvolume that wrote an extent; constant cost (Linux 6.7)."""
    CLASSIC = 1
    """By walking back references at each commit; dearer the more is shared."""


def create_subvolume(parent_fd: int, name: str) -> None:
    """Make an empty subvolume; `FileExistsError` if the name is taken."""
    fcntl.ioctl(parent_fd, SUBVOL_CREATE, _volume(name))


def snapshot_subvolume(
    parent_fd: int, name: str, source_fd: int, *, read_only: bool = True
) -> None:
    """Make a snapshot of a subvolume; `FileExistsError` if the name is taken.

    First writes out what the source has in the page cache, so this takes as long as that does.
    """
    flags = _SNAPSHOT_READ_ONLY if read_only else 0
    arguments = _VOLUME_ARGS_V2.pack(source_fd, 0, flags, _volume_name(name))
    fcntl.ioctl(parent_fd, SNAP_CREATE_V2, bytearray(arguments))


def delete_subvolume(parent_fd: int, name: str) -> None:
    """Unlink a subvolume at once, whatever it holds; its blocks are freed in the background."""
    fcntl.ioctl(parent_fd, SNAP_DESTROY, _volume(name))


def _volume(name: str) -> bytearray:
    return bytearray(_VOLUME_ARGS.pack(0, _volume_name(name)))


def _volume_name(name: str) -> bytes:
    encoded = os.fsencode(name)
    if not encoded or b"/" in encoded or len(encoded) > 255:
        raise ValueError(f"not a name of a subvolume: {name!r}")
    return encoded


def is_subvolume(path_fd: int) -> bool:
    """Whether the open directory is the root of a subvolume."""
    return os.fstat(path_fd).st_ino == SUBVOLUME_ROOT_INODE


def subvolume_id(path_fd: int) -> int:
    """Number of the subvolume that the open directory lies in; that of its quota group, too."""
    arguments = bytearray(struct.pack("=2Q4080x", 0, SUBVOLUME_ROOT_INODE))
    fcntl.ioctl(path_fd, INO_LOOKUP, arguments)
    return int(struct.unpack_from("=Q", arguments)[0])


def enable_quota(root_fd: int) -> QuotaKind | None:
    """Turn quotas on, simple ones where the kernel has them; None where it has neither.

    Enabling what is enabled is not an error to the kernel, and the kind cannot change while they
    are on: the answer is then the kind that was asked for first, which is the same rule.
    """
    for kind in (QuotaKind.SIMPLE, QuotaKind.CLASSIC):
        try:
            fcntl.ioctl(root_fd, QUOTA_CTL, bytearray(_QUOTA_ARGS.pack(kind.value, 0)))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY):
                raise
        else:
            return kind
    return None


def limit_subvolume(subvolume_fd: int, size_bytes: int) -> None:
    """Refuse writes with EDQUOT beyond `size_bytes`, metadata (so also inodes) included."""
    # Quota group 0 names the one of the subvolume that the descriptor lies in.
    arguments = _LIMIT_ARGS.pack(0, _LIMIT_REFERENCED, size_bytes, 0, 0, 0)
    fcntl.ioctl(subvolume_fd, QGROUP_LIMIT, bytearray(arguments))


def used_bytes(subvolume_fd: int) -> int | None:
    """What the subvolume was charged at the last commit; None if it has no quota group."""
    group = subvolume_id(subvolume_fd)
    key = _SEARCH_KEY.pack(
        _QUOTA_TREE, 0, 0, group, group, 0, _UNBOUNDED,
        _QGROUP_INFO_KEY, _QGROUP_INFO_KEY, 1, 0, 0, 0, 0, 0,
    )  # fmt: skip
    arguments = bytearray(key + bytes(4096 - _SEARCH_KEY.size))
    try:
        fcntl.ioctl(subvolume_fd, TREE_SEARCH, arguments)
    except FileNotFoundError:  # no quota tree
        return None
    if _SEARCH_KEY.unpack_from(arguments)[9] == 0:
        return None
    item_at = _SEARCH_KEY.size + _SEARCH_HEADER.size
    return int(_QGROUP_INFO.unpack_from(arguments, item_at)[1])
