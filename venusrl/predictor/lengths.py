"""Reads lengths of trajectories from a CSV file.

One row per message: `task_id, trial, turn, kind, tokens`, further columns are ignored. A turn is a
message of kind `act`; what comes before the first is the prompt, what comes after it is what the
turn added to the context. The messages of a trajectory are in order; each `act` begins a `turn`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from venusrl.schedule.snapshot import Ints

COLUMNS = ("task_id", "trial", "turn", "kind", "tokens")
MAX_COUNT = 10**9  # tokens of one message, turns: what is more is no length
# What is more would take hours, or more memory than there is.
MAX_MESSAGES = 2_000_000
MAX_TRAJECTORIES = 20_000
MAX_TRIALS = 64  # of one task


class LengthsError(Exception):
    """The file is not what it should be; says where."""


@dataclass(slots=True)
class _Messages:
    """Those of one trajectory so far."""

    added: list[int] = field(default_factory=list)  # tokens, by each turn
    turn: int = -1  # the last that was named

    def add(self, turn: int, kind: str, tokens: int) -> None:
        """ValueError where the message cannot come here."""
        begins = kind == "act"
        if turn < self.turn + (begins and bool(self.added)):
            raise ValueError(
                f"turn {turn} after turn {self.turn}: messages of a trajectory are in order, and "
                "each 'act' begins a turn"
            )
        self.turn = turn
        if begins:
            self.added.append(tokens)
        elif self.added:
            self.added[-1] += tokens


@dataclass(frozen=True, slots=True)
class Trajectory:
    """`grown[k]`: tokens that the first k + 1 turns added to the context."""

    grown: Ints

    @property
    def turns(self) -> int:
        return len(self.grown)

    @property
    def tokens(self) -> int:
        return int(self.grown[-1])


def read_lengths(path: Path) -> list[list[Trajectory]]:
    """The trajectories of each task, in the order of the file."""
    tasks: dict[str, dict[str, _Messages]] = {}
    line = 1
    try:
        # Spreadsheets begin their files with a byte order mark.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise LengthsError(f"read {path}: no column {', '.join(missing)}")
            for row in reader:
                line = reader.line_num
                add(path, line, row, tasks)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LengthsError(f"read {path}, after line {line}: {error}") from error
    found = [
        [Trajectory(np.cumsum(messages.added)) for messages in trials.values() if messages.added]
        for trials in tasks.values()
    ]
    found = [task for task in found if task]
    if len(found) < 2:
        raise LengthsError(f"read {path}: {len(found)} tasks with trajectories; two are needed")
    if sum(map(len, found)) > MAX_TRAJECTORIES:
        raise LengthsError(f"read {path}: more than {MAX_TRAJECTORIES} trajectories")
    return found


def add(path: Path, line: int, row: dict[str, str], tasks: dict[str, dict[str, _Messages]]) -> None:
    """One message, to the turns of its trajectory."""
    if line > MAX_MESSAGES:
        raise LengthsError(f"read {path}, line {line}: more than {MAX_MESSAGES} messages")
    for name in COLUMNS:
        if row[name] is None:
            raise LengthsError(f"read {path}, line {line}: no {name}")
    trials = tasks.setdefault(row["task_id"], {})
    messages = trials.setdefault(row["trial"], _Messages())
    if len(trials) > MAX_TRIALS:
        raise LengthsError(
            f"read {path}, line {line}: task {row['task_id']!r} has more than {MAX_TRIALS} trials"
        )
    turn, tokens = (count(path, line, name, row[name]) for name in ("turn", "tokens"))
    try:
        messages.add(turn, row["kind"], tokens)
    except ValueError as error:
        raise LengthsError(f"read {path}, line {line}: {error}") from error


def count(path: Path, line: int, name: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= number <= MAX_COUNT:
        raise LengthsError(f"read {path}, line {line}: {name} is {text[:40]!r}, not a count")
    return number
