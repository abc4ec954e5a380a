"""Each program of `programs/` finds its state unchanged: in forks, forks of forks, the original."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.conftest import PROGRAMS
from tests.fidelity.rows import run_row

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.c"))


@pytest.mark.parametrize("name", NAMES)
def test_row(name: str, rootfs: Path, program_layer: Path, workspace: Path) -> None:
    row = run_row(rootfs, program_layer, workspace, [f"/t/{name}"])
    assert row.original == "ok"
    assert row.forks == ["ok", "ok", "ok"]
