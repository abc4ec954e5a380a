"""Reading and writing the kernel's files of groups."""

from __future__ import annotations

import errno
import os

from sandboxd.errors import InternalError, LimitExceeded, errno_text


def make_group(path: str) -> None:
    """`LimitExceeded` where the kernel has no room for another one."""
    try:
        os.mkdir(path)
    except OSError as error:
        # EAGAIN: there are as many groups as there may be. ENOSPC: the kernel numbers no further.
        if error.errno not in (errno.EAGAIN, errno.ENOSPC, errno.ENOMEM):
            raise
        raise LimitExceeded(
            "the kernel has no room for another group",
            operation="make group",
            object=path,
            cause=errno_text(error.errno),
        ) from error


def write(path: str, value: str | int) -> None:
    """`InternalError` when the kernel refuses the value, `OSError` when there is no such file."""
    descriptor = open_for_writing(path)
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        raise InternalError(
            f"the kernel refuses the value {value}",
            operation="write cgroup file",
            object=path,
            cause=errno_text(error.errno or 0),
        ) from error
    finally:
        os.close(descriptor)


def open_for_writing(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


def read(path: str) -> str:
    # By hand: one is read for each command, and a file object costs more than the reading.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, 1 << 16):
            content += piece
        return content.decode()
    finally:
        os.close(descriptor)


def read_number(path: str) -> int:
    return int(read(path))


def read_fields(path: str) -> dict[str, int]:
    """Lines of a name and a number, as the files of statistics have."""
    pairs = (line.split(" ", 1) for line in read(path).splitlines())
    return {name: int(value) for name, value in pairs}


def read_field(path: str, name: str) -> int:
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    raise InternalError("a field is missing", operation="read cgroup file", object=path, cause=name)


def pids(group: str) -> set[int]:
    """The processes of a group, none if it is gone."""
    try:
        return {int(line) for line in read(f"{group}/cgroup.procs").split()}
    except (FileNotFoundError, OSError) as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):  # removed before or while reading
            return set()
        raise
