"""A root filesystem that lies in a directory of the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sandboxd.images.streams import Allowance
from sandboxd.images.tree_writer import Metadata, TreeWriter


def write_directory(source: Path, writer: TreeWriter, allowance: Allowance) -> None:
    """Copy a directory of the host, without what is mounted inside it."""
    seen: dict[tuple[int, int], str] = {}
    device = os.stat(source).st_dev
    writer.directory("", _metadata(os.stat(source)))
    pending = [(os.fspath(source), "")]
    while pending:
        host_directory, inside = pending.pop()
        with os.scandir(host_directory) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            path = f"{inside}/{entry.name}"
            if stat.S_ISDIR(status.st_mode):
                writer.directory(path, _metadata(status))
                if status.st_dev == device:
                    pending.append((entry.path, path))
                continue
            identity = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and identity in seen:
                writer.hard_link(path, _metadata(status), seen[identity])
                continue
            written = _write_file(entry.path, path, status, writer, allowance)
            if written and status.st_nlink > 1:
                seen[identity] = path


def _write_file(
    host_path: str, path: str, status: os.stat_result, writer: TreeWriter, allowance: Allowance
) -> bool:
    metadata = _metadata(status)
    if stat.S_ISREG(status.st_mode):
        allowance.spend(status.st_size)
        with open(host_path, "rb", buffering=0) as content:
            writer.file(path, metadata, content)
    elif stat.S_ISLNK(status.st_mode):
        writer.symbolic_link(path, metadata, os.readlink(host_path))
    elif stat.S_ISFIFO(status.st_mode):
        writer.fifo(path, metadata)
    else:
        return False
    return True


def _metadata(status: os.stat_result) -> Metadata:
    return Metadata(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime)
