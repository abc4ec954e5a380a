"""Host id ranges of tenants: 65536 ids each, given once and for ever.

A tenant's sandboxes share one range, so that their files may later be handed from one to another;
two tenants never share an id. The table is on disk before a range is first used, and a range is
never given again: a file of an old tenant must not become a new one's.

Ranges that the host has promised to somebody else (/etc/subuid, /etc/subgid) are passed over.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from sandboxd.errors import InternalError, LimitExceeded

RANGE_SIZE = 65536
# The last id is (uid_t) -1, "no change".
LAST_ID = 2**32 - 2


class IdRanges:
    """The table; every method may be called from any thread."""

    def __init__(
        self,
        table_file: Path,
        first_id: int,
        promised_files: tuple[Path, ...] = (Path("/etc/subuid"), Path("/etc/subgid")),
    ) -> None:
        self._file = table_file
        self._first_id = first_id
        self._promised_files = promised_files
        self._lock = threading.Lock()
        self._bases: dict[int, int] | None = None

    def base_for(self, tenant_uid: int) -> int:
        """First host id of the tenant's range."""
        with self._lock:
            if self._bases is None:
                self._bases = self._load()
            base = self._bases.get(tenant_uid)
            if base is None:
                base = self._next_free(self._bases)
                changed = {**self._bases, tenant_uid: base}
                self._save(changed)
                self._bases = changed
            return base

    def _next_free(self, bases: dict[int, int]) -> int:
        taken = [(base, base + RANGE_SIZE) for base in bases.values()] + self._promised()
        candidate = self._first_id
        while candidate + RANGE_SIZE - 1 <= LAST_ID:
            overlapping = [
                end for start, end in taken if start < candidate + RANGE_SIZE and candidate < end
            ]
            if not overlapping:
                return candidate
            # Whole steps, so that ranges of this table stay aligned to each other.
            behind = max(overlapping) - self._first_id
            candidate = self._first_id + -(-behind // RANGE_SIZE) * RANGE_SIZE
        raise LimitExceeded(
            "no host id range is left for another tenant",
            operation="assign ids",
            object=str(self._file),
            cause=f"{len(bases)} tenants from id {self._first_id} on",
        )

    def _promised(self) -> list[tuple[int, int]]:
        ranges = []
        for file in self._promised_files:
            try:
                lines = file.read_text().splitlines()
            except FileNotFoundError:
                continue
            for line in lines:
                fields = line.split(":")
                if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
                    ranges.append((int(fields[1]), int(fields[1]) + int(fields[2])))
        return ranges

    def _load(self) -> dict[int, int]:
        try:
            table = json.loads(self._file.read_text())
            return {int(tenant): int(base) for tenant, base in table.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            # Starting anew would give the ids of one tenant's files to another.
            raise InternalError(
                "the table of id ranges is damaged",
                operation="assign ids",
                object=str(self._file),
                cause=str(error),
            ) from error

    def _save(self, bases: dict[int, int]) -> None:
        unfinished = self._file.with_suffix(".unfinished")
        with open(unfinished, "w") as stream:
            json.dump(bases, stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.rename(self._file)
        directory_fd = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory_fd)
        finally:
            os.close(directory_fd)
