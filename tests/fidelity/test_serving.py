"""Connections whose data the kernel alone holds are brought to where they can be captured."""

from __future__ import annotations

from pathlib import Path

from tests.fidelity.rows import run_row


def test_servers_that_are_always_asked(rootfs: Path, program_layer: Path, workspace: Path) -> None:
    row = run_row(rootfs, program_layer, workspace, ["/t/serving"])
    assert row.original == "ok"
    assert row.forks == ["ok", "ok", "ok"]
