"""Every open file of a stopped process: what /proc says, and what the file itself answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import struct
import termios
import zlib
from collections.abc import Hashable, Iterator
from pathlib import Path

from tests.fidelity.comparator import kernel
from tests.fidelity.comparator.record import Names
from tests.fidelity.comparator.sockets import socket_fields

Fields = Iterator[tuple[str, Hashable]]

_FCNTL = {
    "F_GETFL": 3, "F_GETSIG": 11, "F_GETLEASE": 1025, "F_GETPIPE_SZ": 1032, "F_GET_SEALS": 1034,
}  # fmt: skip
_F_GETOWN_EX, _F_GET_RW_HINT, _F_GET_FILE_RW_HINT = 16, 1035, 1037
_TERMINAL = {
    "TCGETS2": (0x802C542A, 44), "TIOCGWINSZ": (0x5413, 8), "TIOCOUTQ": (0x5411, 4),
    "TIOCGPKT": (0x80045438, 4), "TIOCGPTLCK": (0x80045439, 4), "TIOCGPTN": (0x80045430, 4),
    "TIOCGETD": (0x5424, 4), "TIOCGEXCL": (0x80045440, 4),
}  # fmt: skip
_MAX_CONTENT = 64 << 20
# Namespaces too.
_LINK = re.compile(r"([a-z_]+):\[(\d+)\]")


def _fdinfo(text: str, mounts: dict[str, str]) -> Fields:
    targets = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        value = " ".join(value.split())
        if key == "tfd":
            targets.append(re.sub(r" ino:\S+ sdev:\S+", "", value))
        elif key == "mnt_id":
            yield "info/mount", mounts.get(value, "none")
        elif key == "lock":
            # 1: POSIX ADVISORY WRITE 5 fe:00:1234 0 EOF
            _, *words = value.split()
            yield "info/lock", tuple(words[:4] + words[5:])
        else:
            yield f"info/{key}", value
    if targets:
        yield "info/epoll targets", tuple(sorted(targets))


def _asked(fd: int, host_to_inner: dict[int, int]) -> Fields:
    for name, request in _FCNTL.items():
        with contextlib.suppress(OSError):
            yield f"fcntl/{name}", fcntl.fcntl(fd, request)
    kind, owner = struct.unpack("ii", fcntl.fcntl(fd, _F_GETOWN_EX, bytes(8)))
    yield "fcntl/F_GETOWN_EX", (kind, host_to_inner.get(owner, owner))
    for name, request in (("inode", _F_GET_RW_HINT), ("file", _F_GET_FILE_RW_HINT)):
        with contextlib.suppress(OSError):
            yield f"fcntl/hint of {name}", fcntl.fcntl(fd, request, bytes(8))
    status = os.fstat(fd)
    for name in ("mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks", "mtime_ns"):
        yield f"stat/{name}", getattr(status, f"st_{name}")
    with contextlib.suppress(OSError):
        waiting = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
        yield "queue/FIONREAD", struct.unpack("i", waiting)[0]
    if stat.S_ISCHR(status.st_mode):
        for name, (request, size) in _TERMINAL.items():
            with contextlib.suppress(OSError):
                yield f"terminal/{name}", fcntl.ioctl(fd, request, bytes(size))


def _content(fd: int, mode: int) -> Fields:
    """Of files and of pipes, of which it is not taken away.

    Files of /proc have no size: what they say is compared where they are.
    """
    readable = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_PATH) != os.O_WRONLY
    if stat.S_ISREG(mode) and readable and (size := os.fstat(fd).st_size) <= _MAX_CONTENT:
        checksum, at = 0, 0
        while at < size and (piece := os.pread(fd, 1 << 20, at)):
            checksum, at = zlib.crc32(piece, checksum), at + len(piece)
        yield "content", checksum
    if stat.S_ISFIFO(mode) and readable:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ))
            with contextlib.suppress(BlockingIOError):
                kernel.call("tee", fd, writer, 1 << 30, 2)
                yield "queue/content", os.read(reader, 1 << 24)
        finally:
            os.close(reader)
            os.close(writer)


def duplicate(pidfd: int, number: int) -> int:
    return kernel.call("pidfd_getfd", pidfd, number, 0)


def descriptor_fields(
    process: Path, pidfd: int, number: int, names: Names, mounts: dict[str, str],
    host_to_inner: dict[int, int],
) -> Fields:  # fmt: skip
    link = os.readlink(process / "fd" / str(number))
    if found := _LINK.fullmatch(link):
        link = names.of(found[1], int(found[2]))
    yield "link", link
    yield from _fdinfo((process / "fdinfo" / str(number)).read_text(), mounts)
    fd = duplicate(pidfd, number)
    try:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
            return
        yield from _asked(fd, host_to_inner)
        mode = os.fstat(fd).st_mode
        yield from _content(fd, mode)
        if stat.S_ISSOCK(mode):
            yield from socket_fields(fd, host_to_inner)
    finally:
        os.close(fd)


def sharing(processes: dict[int, tuple[int, list[int]]]) -> Iterator[tuple[int, int, str]]:
    """For each descriptor the first one, in order, that is the same open file.

    `processes` maps the pid inside to the pid on the host and the descriptors.
    """
    first: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for pid, (host_pid, numbers) in processes.items():
        for number in numbers:
            status = os.stat(f"/proc/{host_pid}/fd/{number}")
            known = first.setdefault((status.st_dev, status.st_ino), [])
            for other_pid, other_host, other in known:
                if kernel.shares(0, (host_pid, number), (other_host, other)):
                    yield pid, number, f"pid {other_pid} fd {other}"
                    break
            else:
                known.append((pid, host_pid, number))
                yield pid, number, "its own"
