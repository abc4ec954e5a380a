"""Builds that failed: why, and what they said; one JSON file each, replaced as a whole.

So many of each tenant are kept, and so many in all; of more, the oldest go.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxd.state_files import replace_file

_LOG = logging.getLogger("sandboxd")
RECORD_VERSION = 1
_SUFFIX = ".json"
_ID = re.compile(r"bd-[0-9a-f]{16}")


@dataclass(frozen=True)
class BuildRecord:
    """One build, as it ended; `log` is not held in memory."""

    build_id: str
    tenant_uid: int
    recipe: str
    """Digest of what was built."""
    created_at: float
    ended_at: float
    error: Mapping[str, Any] = field(repr=False)
    """As the API answered it."""


class BuildRecords:
    """The files under one directory. Blocking; each call is a few short system calls."""

    def __init__(self, directory: Path, max_per_tenant: int, max_count: int) -> None:
        self._directory = directory
        self._max_per_tenant = max_per_tenant
        self._max_count = max_count
        self._records: dict[str, BuildRecord] = {}

    def open(self) -> None:
        """Find what an earlier daemon left, as far as it can be read."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = []
        for path in self._directory.iterdir():
            try:
                table = json.loads(path.read_bytes())
                if table.pop("version") != RECORD_VERSION or path.suffix != _SUFFIX:
                    raise ValueError("of another version")
                del table["log"]
                found.append(BuildRecord(**table))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                _LOG.warning("removed the record of a build, %s: %s", path.name, error)
                path.unlink(missing_ok=True)
        for record in sorted(found, key=lambda each: each.ended_at):
            self._records[record.build_id] = record
        self._remove_surplus()

    def write(self, record: BuildRecord, log: str) -> None:
        """Keep it; a node without room for it loses it."""
        path = self._path(record.build_id)
        temporary = path.with_suffix(".tmp")
        content = {"version": RECORD_VERSION, **dataclasses.asdict(record), "log": log}
        try:
            replace_file(path, temporary, json.dumps(content).encode())
        except OSError as error:
            _LOG.warning("the log of build %s is lost: %s", record.build_id, error)
            temporary.unlink(missing_ok=True)
            return
        self._records[record.build_id] = record
        self._remove_surplus()

    def visible(self, peer_uid: int) -> list[BuildRecord]:
        """The peer's own, or all for root; the oldest first."""
        return [each for each in self._records.values() if peer_uid in (0, each.tenant_uid)]

    def get(self, build_id: str) -> BuildRecord | None:
        """One of them."""
        return self._records.get(build_id)

    def log(self, build_id: str) -> str:
        """What it said; empty when the file is gone."""
        try:
            return str(json.loads(self._path(build_id).read_bytes())["log"])
        except (OSError, ValueError, KeyError):
            return ""

    def _remove_surplus(self) -> None:
        counts: dict[int, int] = {}
        kept = 0
        for record in reversed(list(self._records.values())):
            of_tenant = counts[record.tenant_uid] = counts.get(record.tenant_uid, 0) + 1
            if of_tenant > self._max_per_tenant or kept >= self._max_count:
                del self._records[record.build_id]
                self._path(record.build_id).unlink(missing_ok=True)
            else:
                kept += 1

    def _path(self, build_id: str) -> Path:
        if not _ID.fullmatch(build_id):
            raise ValueError(f"not an id of a build: {build_id!r}")
        return self._directory / f"{build_id}{_SUFFIX}"
