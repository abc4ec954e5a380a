"""State files: what the daemon must know about its sandboxes after it was killed.

One `state.json` per sandbox in its run directory, replaced as a whole (temporary file + rename),
so that a reader sees the old or the new one. There is no fsync: the files describe processes of
this boot, and a crash of the machine ends those too; what must be survived is a `kill -9` of the
daemon, and the page cache survives that.

A file is written once the sandbox runs. A directory without a readable file is a remnant of a
create that was cut, and nobody was ever told its id.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxd.errors import InternalError
from sandboxd.state_files import replace_file, reserve_file

STATE_VERSION = 1
STATE_FILE = "state.json"
_TEMPORARY = "state.tmp"


@dataclass(frozen=True)
class SandboxRecord:
    """Everything about one sandbox that outlives the daemon."""

    sandbox_id: str
    image: str
    tenant_uid: int
    memory_bytes: int
    pids: int
    cpu_cores: float
    disk_bytes: int | None
    hostname: str
    init_pid: int
    init_start_ticks: int
    """Field 22 of /proc/PID/stat: with pid and boot it names one process for ever."""
    boot_id: str
    created_at: float
    expires_boottime_s: float | None
    """On CLOCK_BOOTTIME, which a changed wall clock does not move."""
    generation: int = 0
    """How many daemons adopted it; the upper half of its exec ids, so that none comes twice."""
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    generation_id: str = ""
    """What the sandbox reads at /run/venus/generation."""
    template: str = ""
    """Id of the template that it was made from; empty: of an image alone."""
    lease: str = ""
    """It goes when the lease does; empty: with nobody's."""
    paused: bool = False
    pause_on_expiry: bool = False
    resume_ttl_s: float | None = None
    """Both: see `Expiry`."""
    ephemeral: bool = False
    """It goes with its first command, whose client goes with the daemon at the latest."""


def encode_record(record: SandboxRecord) -> bytes:
    """The content of a state file."""
    return json.dumps({"version": STATE_VERSION, **vars(record)}).encode()


def decode_record(content: bytes) -> SandboxRecord:
    """Inverse of `encode_record`; `ValueError` for anything else, also another version."""
    table: Any = json.loads(content)
    if not isinstance(table, dict) or table.pop("version", None) != STATE_VERSION:
        raise ValueError(f"not a state file of version {STATE_VERSION}")
    try:
        return SandboxRecord(**table)
    except TypeError as error:
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def _explained(sandbox_id: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InternalError(
            "the state file cannot be written",
            operation="remember sandbox",
            object=sandbox_id,
            cause=str(error),
        ) from error


class Registry:
    """The state files under one directory. Blocking; each call is a few short system calls."""

    def __init__(self, sandboxes_dir: Path) -> None:
        self._dir = sandboxes_dir

    def write(self, record: SandboxRecord) -> None:
        """Create or replace the state file of `record`."""
        directory = f"{self._dir}/{record.sandbox_id}"
        with _explained(record.sandbox_id):
            replace_file(
                f"{directory}/{STATE_FILE}", f"{directory}/{_TEMPORARY}", encode_record(record)
            )

    def reserve(self, sandbox_id: str) -> None:
        """Ahead of the first `write`: to make a file takes longer than to write and rename it."""
        with _explained(sandbox_id):
            reserve_file(f"{self._dir}/{sandbox_id}/{_TEMPORARY}")

    def forget(self, sandbox_id: str) -> None:
        """Remove the state file; from here on the sandbox can only be removed, not adopted."""
        (self._dir / sandbox_id / STATE_FILE).unlink(missing_ok=True)

    def read_all(self) -> dict[str, SandboxRecord | None]:
        """All ids that have a directory; None where its state file is absent or unreadable."""
        records: dict[str, SandboxRecord | None] = {}
        if not self._dir.exists():
            return records
        for directory in self._dir.iterdir():
            try:
                record = decode_record((directory / STATE_FILE).read_bytes())
            except (OSError, ValueError):
                records[directory.name] = None
                continue
            records[directory.name] = record if record.sandbox_id == directory.name else None
        return records
