"""What a start makes of the marks that tracers leave."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd import tracer
from sandboxd.tracer import MARK_NAME, cut_captures


def mark_of(directory: Path, name: str, content: str) -> Path:
    (directory / name).mkdir()
    mark = directory / name / MARK_NAME
    mark.write_text(content)
    return mark


def test_a_mark_that_nobody_holds_tells_of_a_cut_capture(tmp_path: Path) -> None:
    mark_of(tmp_path, "idle", "")
    mark_of(tmp_path, "cut", "1")
    (tmp_path / "never-captured").mkdir()
    assert cut_captures(tmp_path) == {"cut"}


@pytest.mark.parametrize("puts_back", [True, False])
def test_a_tracer_that_is_at_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, puts_back: bool
) -> None:
    mark = mark_of(tmp_path, "at-it", "1")
    with mark.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        pauses = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                if puts_back:
                    held.truncate(0)
                fcntl.flock(held, fcntl.LOCK_UN)

        monkeypatch.setattr(tracer.time, "sleep", pause)
        assert cut_captures(tmp_path) == (set() if puts_back else {"at-it"})
    assert len(pauses) == 3


def test_one_that_does_not_come_to_an_end_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(tracer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tracer.time, "sleep", lambda _: now.__setitem__(0, now[0] + 10))
    with mark_of(tmp_path, "stuck", "1").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cut_captures(tmp_path) == {"stuck"}
