"""Publishes decisions for schedulers: what a router does."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from venusrl.engine.shared_table import DECISION, NOBODY, Claim, SharedTable
from venusrl.schedule.snapshot import Level


@dataclass
class Desk:
    """Rows are trajectories, by number."""

    table: SharedTable
    rows: np.ndarray
    entered: int = 0

    @classmethod
    def open(cls, path: Path, rows: int) -> Desk:
        nobody = np.zeros(rows, DECISION)
        nobody["trajectory"] = NOBODY
        return cls(SharedTable.create(path, DECISION, rows), nobody)

    @property
    def alive(self) -> list[int]:
        """Numbers of those that are in the table."""
        found: list[int] = np.flatnonzero(self.rows["trajectory"] != NOBODY).tolist()
        return found

    def enter(self) -> Claim:
        """One more trajectory, the last in rank."""
        self.entered += 1
        self.decide(self.entered, rank=self.entered, level=Level.HIGH, critical=False)
        return Claim(self.entered, self.entered)

    def decide(
        self, number: int, *, rank: int, level: Level, critical: bool = True, worker: int = 0
    ) -> None:
        self.rows[number] = (number, worker, rank, critical, int(level))
        self.table.publish(self.rows)

    def leave(self, *numbers: int) -> None:
        self.rows["trajectory"][list(numbers)] = NOBODY
        self.table.publish(self.rows)

    def shuffle(self, alive: Iterable[int], chance: random.Random) -> None:
        """Another order, another third critical, another third without protection."""
        self.rows["trajectory"] = NOBODY
        for number in alive:
            level = chance.choice([Level.LOW, Level.HIGH, Level.HIGH])
            rank, critical = chance.randrange(99), chance.random() < 0.3
            self.rows[number] = (number, 0, rank, critical, int(level))
        self.table.publish(self.rows)
