"""Reads lengths of trajectories from a CSV file.

One row per message: `task_id, trial, turn, kind, tokens`, further columns are ignored. A turn is a
message of kind `act`; what comes before the first is the prompt, what comes after it is what the
turn added to the context.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from venusrl.schedule.snapshot import Ints

COLUMNS = ("task_id", "trial", "turn", "kind", "tokens")
MAX_TOKENS = 10**9  # of one message: what is more is no length
# What is more would take hours, or more memory than there is.
MAX_MESSAGES = 2_000_000
MAX_TRAJECTORIES = 20_000
MAX_TRIALS = 64  # of one task


class LengthsError(Exception):
    """The file is not what it should be; says where."""


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
    added: dict[str, dict[str, list[int]]] = {}
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
                add(path, line, row, added)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LengthsError(f"read {path}, after line {line}: {error}") from error
    tasks = [
        [Trajectory(np.cumsum(turns)) for turns in trials.values() if turns]
        for trials in added.values()
    ]
    tasks = [task for task in tasks if task]
    if len(tasks) < 2:
        raise LengthsError(f"read {path}: {len(tasks)} tasks with trajectories; two are needed")
    if sum(map(len, tasks)) > MAX_TRAJECTORIES:
        raise LengthsError(f"read {path}: more than {MAX_TRAJECTORIES} trajectories")
    return tasks


def add(path: Path, line: int, row: dict[str, str], added: dict[str, dict[str, list[int]]]) -> None:
    """One message, to the turns of its trajectory."""
    if line > MAX_MESSAGES:
        raise LengthsError(f"read {path}, line {line}: more than {MAX_MESSAGES} messages")
    for name in COLUMNS:
        if row[name] is None:
            raise LengthsError(f"read {path}, line {line}: no {name}")
    trials = added.setdefault(row["task_id"], {})
    turns = trials.setdefault(row["trial"], [])
    if len(trials) > MAX_TRIALS:
        raise LengthsError(
            f"read {path}, line {line}: task {row['task_id']!r} has more than {MAX_TRIALS} trials"
        )
    tokens = count(path, line, row["tokens"])
    if row["kind"] == "act":
        turns.append(tokens)
    elif turns:
        turns[-1] += tokens


def count(path: Path, line: int, text: str) -> int:
    tokens = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= tokens <= MAX_TOKENS:
        raise LengthsError(f"read {path}, line {line}: tokens is {text[:40]!r}, not a count")
    return tokens
