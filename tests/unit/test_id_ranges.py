"""Ranges are given once, never overlap, survive restarts, and damage is not papered over."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.errors import InternalError, LimitExceeded
from sandboxd.id_ranges import LAST_ID, RANGE_SIZE, IdRanges

pytestmark = pytest.mark.unit

FIRST = 1 << 30


def ranges(directory: Path, first_id: int = FIRST, promised: str = "") -> IdRanges:
    promised_file = directory / "subuid"
    promised_file.write_text(promised)
    return IdRanges(directory / "ids.json", first_id, (promised_file, directory / "missing"))


def test_one_range_per_tenant_for_ever(tmp_path: Path) -> None:
    table = ranges(tmp_path)
    assert table.base_for(0) == FIRST
    assert table.base_for(1000) == FIRST + RANGE_SIZE
    assert table.base_for(0) == FIRST
    again = ranges(tmp_path)
    assert again.base_for(1001) == FIRST + 2 * RANGE_SIZE
    assert again.base_for(1000) == FIRST + RANGE_SIZE


def test_the_hosts_promises_are_passed_over(tmp_path: Path) -> None:
    promised = f"alice:{FIRST + 10}:65536\nbob:{FIRST + 3 * RANGE_SIZE}:1\nnonsense\n"
    table = ranges(tmp_path, promised=promised)
    assert table.base_for(1) == FIRST + 2 * RANGE_SIZE
    assert table.base_for(2) == FIRST + 4 * RANGE_SIZE


def test_a_changed_start_does_not_move_or_overlap_old_ranges(tmp_path: Path) -> None:
    ranges(tmp_path).base_for(1)
    moved = ranges(tmp_path, first_id=FIRST - RANGE_SIZE // 2)
    assert moved.base_for(1) == FIRST
    assert moved.base_for(2) >= FIRST + RANGE_SIZE


def test_the_end_of_all_ids(tmp_path: Path) -> None:
    table = ranges(tmp_path, first_id=LAST_ID + 1 - RANGE_SIZE)
    assert table.base_for(1) + RANGE_SIZE - 1 == LAST_ID
    with pytest.raises(LimitExceeded):
        table.base_for(2)


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text('{"1": ')
    with pytest.raises(InternalError, match="damaged"):
        ranges(tmp_path).base_for(1)
