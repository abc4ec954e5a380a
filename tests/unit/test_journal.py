"""What a router finds again: after a trainer was killed, and after weights were lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from venusrl.engine.journal import Journal, JournalError
from venusrl.engine.rollouts import Ended, Kept

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]

STEPS = 6


def train(place: Path, die: str | None = None) -> int:
    command = [sys.executable, "-m", "tests.support.trainer", str(place), str(STEPS)]
    return subprocess.run([*command, *([die] if die else [])], check=False).returncode


@pytest.mark.parametrize(
    "die",
    ["dispatch:7", "turn:5", "finish:8", "train:3", "retire:3", "save:3", "save:4", "push:3"],
)
def test_a_trainer_that_is_killed_trains_every_group_once(tmp_path: Path, die: str) -> None:
    """Twice at the same place. The trainer itself checks staleness and whose data it is."""
    assert train(tmp_path, die) == -signal.SIGKILL
    train(tmp_path, die)
    assert train(tmp_path) == 0
    found = json.loads((tmp_path / "checkpoint").read_text())
    trained = found["trained"]
    assert found["version"] == STEPS and len(trained) == 2 * STEPS
    numbers = {key.split()[0] for key in trained}
    assert len(numbers) == len(trained), "a group was trained twice"
    # Old groups are forced, so nothing that was dispatched is skipped for long.
    oldest = sorted(int(key.split()[0]) for key in trained)
    assert oldest[: 2 * STEPS - 4] == list(range(2 * STEPS - 4))


def test_what_lost_weights_wrote_and_trained_is_made_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", 0)
    for order, version in enumerate((0, 1, 1, 3)):
        journal.dispatch(order, version, 10, 2, f"g{order}")
    journal.end(0, 0, 0, Ended("zero", None))
    journal.end(0, 1, 1, Ended(None, "hung"))
    journal.retire([0], 1)
    journal.end(1, 0, 2, Ended("one", None))
    journal.end(1, 1, 2, Ended("one", None))
    journal.retire([1], 2)
    journal.end(2, 1, 2, Ended("two", None))
    journal.end(3, 0, 3, Ended("three", None))
    journal.close()

    # Version 2 has been trained by step 1, not by step 2; what version 3 wrote is lost.
    again = Journal.open(tmp_path / "journal", 2)
    one, two = Ended("one", None), Ended("two", None)
    expected = [
        Kept(1, 1, 10, "g1", [one, one]),
        Kept(2, 1, 10, "g2", [None, two]),
        Kept(3, 2, 10, "g3", [None, None]),
    ]
    assert again.kept() == expected
    assert again.dispatched == 4
    again.close()
    earlier = Journal.open(tmp_path / "journal", 0)
    assert [(kept.version, kept.episodes) for kept in earlier.kept()] == [(0, [None] * 2)] * 3
    earlier.close()


def test_a_safe_checkpoint_lets_go_of_what_it_was_trained_on(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", 0)
    for order in range(3):
        journal.dispatch(order, 0, 1, 1, "")
        journal.end(order, 0, 0, Ended("record", None))
        journal.retire([order], order)
    journal.forget(2)
    assert [kept.order for kept in journal.kept()] == [2]
    journal.close()


def test_a_journal_is_one_process_s_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path, 0)
    with pytest.raises(JournalError, match=r"open journal .*: database is locked"):
        Journal.open(path, 0)
    with pytest.raises(JournalError, match="dispatch a group in journal"):
        journal.dispatch(0, 0, 1, 1, "")
        journal.dispatch(0, 0, 1, 1, "")
    journal.close()
    path.write_bytes(b"something else" * 100)
    with pytest.raises(JournalError, match="not a database"):
        Journal.open(path, 0)
    with pytest.raises(JournalError, match="unable to open"):
        Journal.open(tmp_path / "nowhere" / "journal", 0)
