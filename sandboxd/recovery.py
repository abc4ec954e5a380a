"""After a start: what becomes of the sandboxes that an earlier daemon left.

The decision is pure and total: each id that has a state file or any remnant (directory, group,
subvolume) is either adopted or removed, never ignored. Facts are gathered first, then decided,
then acted upon by the service.

Does not handle: two daemons at once; to one, the other's sandboxes would be remnants. Locks of the
run directory, the state directory and the parent group keep the second one out.
"""

from __future__ import annotations

import enum
import fcntl
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxd.errors import Conflict
from sandboxd.registry import SandboxRecord

_MAX_STAT_BYTES = 4096


class Action(enum.Enum):
    """What to do with one id."""

    ADOPT = "adopt"
    REMOVE = "remove"


@dataclass(frozen=True)
class Decision:
    """What to do with one id, and why."""

    sandbox_id: str
    action: Action
    reason: str
    record: SandboxRecord | None = None


def decide(
    *,
    records: Mapping[str, SandboxRecord | None],
    remnants: Iterable[str],
    live_inits: Mapping[int, int],
    boot_id: str,
    now_boottime_s: float,
    cut_captures: Collection[str] = (),
    leases: Collection[str] = (),
) -> list[Decision]:
    """One decision per id. `live_inits` maps pid → start ticks of the processes that live;
    `cut_captures` are ids of sandboxes that were being captured when the daemon died,
    `leases` those of leases that go on."""
    decisions = []
    for sandbox_id in sorted(set(records) | set(remnants)):
        record = records.get(sandbox_id)
        if record is None:
            action, reason = Action.REMOVE, "its creation or removal was cut"
        elif (
            record.boot_id != boot_id or live_inits.get(record.init_pid) != record.init_start_ticks
        ):
            action, reason = Action.REMOVE, "its init is dead"
        elif _is_over(record, now_boottime_s):
            action, reason = Action.REMOVE, "its time to live is over"
        elif record.lease and record.lease not in leases:
            action, reason = Action.REMOVE, "its lease ended"
        elif record.ephemeral:
            action, reason = Action.REMOVE, "the client of its command is gone"
        elif sandbox_id in cut_captures:
            # A thread may have been in the middle of a call that the capture made it do.
            action, reason = Action.REMOVE, "a snapshot of it was cut"
        else:
            action, reason = Action.ADOPT, "its init lives"
        decisions.append(Decision(sandbox_id, action, reason, record))
    return decisions


def _is_over(record: SandboxRecord, now_boottime_s: float) -> bool:
    """Its time to live, and with it the sandbox: one that is then to be paused lives on."""
    if record.expires_boottime_s is None or record.expires_boottime_s > now_boottime_s:
        return False
    return record.paused or not record.pause_on_expiry


def process_start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when there is none (or a zombie)."""
    # By hand: this is on the way of every create, and a file object costs more than the reading.
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        stat = os.read(descriptor, _MAX_STAT_BYTES)
    except OSError:  # it has ended meanwhile
        return None
    finally:
        os.close(descriptor)
    # The name in parentheses may hold anything, also ") "; the numbers come after the last one.
    fields = stat.rpartition(b") ")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def current_boot_id() -> str:
    """Names this boot of the machine; a run directory on a disk outlives it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class RunLock:
    """Held by the one daemon of a directory, as long as its process lives.

    flock, not a pid file: the kernel drops it with the process, however that ends. The file is
    never removed while the daemon runs, because a second daemon could then lock a new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise `Conflict`."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise Conflict(
                    "another daemon uses this directory",
                    operation="start sandboxd",
                    object=str(self._path.parent),
                    cause=f"the lock is held by process {holder}",
                ) from None
            if self._is_still_there(fd):
                break
            os.close(fd)  # the last holder removed it between our open and our lock
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def _is_still_there(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Drop the lock and its file. The file goes first, while nobody else can hold it."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None
