"""Tables in shared memory: one process publishes whole versions, others read whole versions.

A file holds two copies of the rows and a version. The writer fills the copy that is not published
and then raises the version; a reader copies the published one and looks whether the version is
still the same. So nobody waits for anybody, a reader never sees half of a version, and a writer
that dies while it writes leaves the last whole one. The order of stores that this needs is that of
x86-64.

One writer per table: whoever has created it. It keeps the file locked, so that whoever comes later
knows a table in use from one that a killed process has left.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.void]

# What a scheduler is told of each trajectory; the row number is the trajectory's slot.
DECISION = np.dtype(
    [
        ("trajectory", "<i8"),  # NOBODY: the slot is free
        ("worker", "<i4"),  # the engine that it is placed on
        ("rank", "<i4"),  # lower is more urgent
        ("critical", "<u4"),
        ("level", "<u4"),  # schedule.snapshot.Level
    ]
)
# What a scheduler tells of each trajectory that it knows.
REPORT = np.dtype([("trajectory", "<i8"), ("kv_tokens", "<i8")])
NOBODY = -1
# How a request says its Claim, in SamplingParams.extra_args (`vllm_xargs` over HTTP).
CLAIM_KEYS = ("venus_slot", "venus_trajectory")

# A table is read in full at each change; 24 bytes a row make 24 MB of this many.
MAX_ROWS = 1 << 20

_MAGIC = b"venustb1"
_HEADER = np.dtype([("magic", "S8"), ("row_bytes", "<u4"), ("rows", "<u4"), ("version", "<u8")])
_HEADER_BYTES = 64
# A reader meets a writer twice in a row only if the writer publishes without pause.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose turn a request is. Slots are used again, numbers of trajectories (0 and up) never."""

    slot: int
    trajectory: int

    @property
    def extra_args(self) -> dict[str, int]:
        """Of a request's SamplingParams."""
        return dict(zip(CLAIM_KEYS, (self.slot, self.trajectory), strict=True))


class TableError(Exception):
    """A file that is not such a table, or not of this shape."""


class SharedTable:
    """A mapped table. Made by `create` (the writer) or `attach` (a reader)."""

    def __init__(self, path: Path, memory: mmap.mmap, dtype: np.dtype[Any], rows: int) -> None:
        self.path = path
        self._memory = memory
        self._header = np.frombuffer(memory, _HEADER, 1)
        whole = np.frombuffer(memory, dtype, 2 * rows, _HEADER_BYTES)
        self._copies = whole.reshape(2, rows)
        self.rows = rows

    @classmethod
    def create(cls, path: Path | str, dtype: np.dtype[Any], rows: int) -> SharedTable:
        """A new table of zeroes at version 0, for this user alone. It takes the place of one whose
        creator has ended.

        Raises:
            ValueError: `rows` is not in 1..MAX_ROWS.
            FileExistsError: `path` is something else, or a table in use.
            OSError: it cannot be made.
        """
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"create table {path}: {rows} rows are not in 1..{MAX_ROWS}")
        path, size = Path(path), _HEADER_BYTES + 2 * rows * dtype.itemsize
        try:
            _remove_orphan(path)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(number, fcntl.LOCK_EX)
                # A hole that the disk cannot fill would end the process that writes there.
                os.posix_fallocate(number, 0, size)
                # The mapping has a descriptor of its own, which keeps the lock.
                table = cls(path, mmap.mmap(number, size), dtype, rows)
            except BaseException:
                path.unlink()
                raise
            finally:
                os.close(number)
        except OSError as error:
            raise OSError(error.errno, f"create table: {error.strerror}", str(path)) from error
        table._header[0] = (_MAGIC, dtype.itemsize, rows, 0)
        return table

    def remove(self) -> None:
        """The file goes; who has attached keeps what it has. For the creator, once."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def attach(cls, path: Path, dtype: np.dtype[Any]) -> SharedTable:
        """The table that another process has created.

        Raises:
            TableError: the file is no table of such rows.
            OSError: it cannot be opened.
        """
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(number).st_size
            if size < _HEADER_BYTES:
                raise TableError(f"attach table {path}: {size} bytes are no table")
            memory = mmap.mmap(number, size)
        finally:
            os.close(number)
        header = np.frombuffer(memory, _HEADER, 1)[0]
        rows = int(header["rows"])
        expected = (_MAGIC, dtype.itemsize, _HEADER_BYTES + 2 * rows * dtype.itemsize)
        if (bytes(header["magic"]), int(header["row_bytes"]), size) != expected:
            raise TableError(f"attach table {path}: it is not one of {dtype.itemsize}-byte rows")
        return cls(path, memory, dtype, rows)

    @property
    def version(self) -> int:
        """Of what is published; 0: nothing yet."""
        return int(self._header["version"][0])

    def publish(self, rows: Rows) -> None:
        """Makes `rows`, all of them, the next version. For the creator alone."""
        following = self.version + 1
        self._copies[following & 1] = rows
        self._header["version"][0] = following

    def read(self, known: int = 0) -> tuple[int, Rows] | None:
        """The published version with its rows; None where it is `known`, or where the writer was
        faster in each of a few attempts: whoever asks again later finds it."""
        for _ in range(_TRIES):
            version = self.version
            if version == known:
                return None
            rows = self._copies[version & 1].copy()
            # Equal: the writer may fill the other copy by now, but not yet this one.
            if self.version == version:
                return version, rows
        return None


def _remove_orphan(path: Path) -> None:
    """Removes a table whose creator has ended; leaves anything else."""
    with suppress(FileNotFoundError):
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another may have replaced it since it was opened.
            here = os.path.samestat(os.fstat(number), os.stat(path, follow_symlinks=False))
            if here and os.read(number, len(_MAGIC)) == _MAGIC:
                path.unlink()
        except BlockingIOError:
            pass
        finally:
            os.close(number)
