"""What a router must know again after its process has ended: groups, and episodes that are over.

A group comes back until a checkpoint is loaded that was trained on it: `retire` says by which step,
and `open` compares that with the version of the checkpoint. So nothing is trained twice, and what
was trained into weights that are lost is trained again. What weights wrote that are lost is not
kept: its episodes begin anew. A group keeps the version that it was dispatched at, and with it its
bound of staleness.

Each call is one transaction on the disk when it returns. One process at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from venusrl.engine.rollouts import Ended, Kept

_TABLES = (
    # Numbers begin at 1; the order of a group is one less. trained_by: the step; NULL: not yet.
    """CREATE TABLE IF NOT EXISTS groups (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        version INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        size INTEGER NOT NULL,
        key TEXT NOT NULL,
        trained_by INTEGER
    )""",
    """CREATE TABLE IF NOT EXISTS episodes (
        number INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
        place INTEGER NOT NULL,
        version INTEGER NOT NULL,
        record TEXT,
        failure TEXT,
        PRIMARY KEY (number, place)
    ) WITHOUT ROWID""",
)


class JournalError(Exception):
    """The file is no journal, another process has it open, or it cannot be written."""


class Journal:
    """Made by `open`."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self._database = path, database

    @classmethod
    def open(cls, path: Path, version: int) -> Journal:
        """The journal at `path`, a new one if nothing is there, for weights of `version`.

        Raises:
            JournalError: see there.
        """
        try:
            database = sqlite3.connect(path, isolation_level=None, timeout=0.0)
        except sqlite3.Error as error:
            raise JournalError(f"open journal {path}: {error}") from error
        try:
            for pragma in ("locking_mode = EXCLUSIVE", "synchronous = FULL", "foreign_keys = ON"):
                database.execute(f"PRAGMA {pragma}")
            journal = cls(path, database)
            # Takes the lock, too, and keeps it.
            journal._write("open", *((table, ()) for table in _TABLES))
            journal._return_to(version)
        except sqlite3.Error as error:
            database.close()
            raise JournalError(f"open journal {path}: {error}") from error
        except JournalError:
            database.close()
            raise
        return journal

    def _return_to(self, version: int) -> None:
        self._write(
            "open",
            ("DELETE FROM groups WHERE trained_by < ?", (version,)),
            ("UPDATE groups SET trained_by = NULL", ()),
            ("DELETE FROM episodes WHERE version > ?", (version,)),
            ("UPDATE groups SET version = ? WHERE version > ?", (version, version)),
        )

    def kept(self) -> list[Kept]:
        """Oldest first."""
        found = []
        for number, version, prompt_tokens, size, key in self._database.execute(
            "SELECT number, version, prompt_tokens, size, key FROM groups ORDER BY number"
        ).fetchall():
            episodes: list[Ended | None] = [None] * size
            for place, record, failure in self._database.execute(
                "SELECT place, record, failure FROM episodes WHERE number = ?", (number,)
            ):
                episodes[place] = Ended(record, failure)
            found.append(Kept(number - 1, version, prompt_tokens, key, episodes))
        return found

    @property
    def dispatched(self) -> int:
        """Groups since the journal was made; the order of the next."""
        row = self._database.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'groups'"
        ).fetchone()
        return 0 if row is None else int(row[0])

    def dispatch(self, order: int, version: int, prompt_tokens: int, size: int, key: str) -> None:
        self._write(
            "dispatch a group",
            (
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?, NULL)",
                (order + 1, version, prompt_tokens, size, key),
            ),
        )

    def end(self, order: int, place: int, version: int, ended: Ended) -> None:
        """`version` of the weights when it ended: none of its tokens is of a later one."""
        self._write(
            "end an episode",
            (
                "INSERT INTO episodes VALUES (?, ?, ?, ?, ?)",
                (order + 1, place, version, ended.record, ended.failure),
            ),
        )

    def retire(self, orders: Iterable[int], step: int) -> None:
        """Step `step`, which makes version `step` + 1, has been trained on them."""
        statement = "UPDATE groups SET trained_by = ? WHERE number = ?"
        self._write("retire groups", *((statement, (step, order + 1)) for order in orders))

    def forget(self, version: int) -> None:
        """A checkpoint of `version` is safe: what it was trained on goes."""
        self._write("forget groups", ("DELETE FROM groups WHERE trained_by < ?", (version,)))

    def close(self) -> None:
        self._database.close()

    def _write(self, operation: str, *statements: tuple[str, tuple[object, ...]]) -> None:
        try:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise JournalError(f"{operation} in journal {self.path}: {error}") from error
