"""Later snapshots of the same sandbox copy only what was written since, and miss nothing of it."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import READY, RESULT, touch, wait_for
from tests.support.init_harness import RawSandbox

SNAPSHOTS = int(os.environ.get("VENUS_TRACKING_SNAPSHOTS", "100"))
WARM_UP = 10
"""Snapshots after which nothing grows any more."""
MEMORY_BYTES = 16 << 20
FILES = "/var/tmp"


def tell(sandbox: RawSandbox, name: str) -> None:
    touch(sandbox, f"{FILES}/{name}")


def verify(fork: RawSandbox, template: _native.Template) -> None:
    result = restore(fork, template)
    assert (result.exit_code, result.failure) == (0, "")
    tell(fork, "go")
    assert wait_for(fork, RESULT) == "ok"


def test_snapshots_copy_what_was_written(
    rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    tracking = _native.WriteTracking()
    copied, shape = [], []
    with isolated(rootfs, workspace / "original", [program_layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start("/t/writer")
        assert wait_for(original, READY) == "ready"
        layers = [freeze(original.upper, workspace / "frozen"), program_layer]
        for number in range(SNAPSHOTS):
            template = _native.capture(original.pid, tracking=tracking)
            counts = template.counts
            copied.append(counts["extent_bytes"])
            shape.append((counts["mappings"], counts["pieces"], len(template.descriptors())))
            with isolated(rootfs, workspace / f"fork-{number}", layers) as fork:
                verify(fork, template)
            tell(original, f"step-{number}")
            assert wait_for(original, f"{FILES}/done-{number}") == "done"
        tell(original, "go")
        assert wait_for(original, RESULT) == "ok"
    assert copied[0] > MEMORY_BYTES
    settled = copied[WARM_UP:]
    assert sorted(settled)[len(settled) // 2] < MEMORY_BYTES // 8
    assert sum(settled) / len(settled) < MEMORY_BYTES / 2, "copied whole only now and then"
    early, late = shape[WARM_UP : SNAPSHOTS // 2], shape[SNAPSHOTS // 2 :]
    for position in range(3):
        assert max(row[position] for row in late) <= 1.2 * max(row[position] for row in early)


def test_a_fork_is_tracked_too(rootfs: Path, program_layer: Path, workspace: Path) -> None:
    with isolated(rootfs, workspace / "original", [program_layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start("/t/writer")
        assert wait_for(original, READY) == "ready"
        layers = [freeze(original.upper, workspace / "frozen"), program_layer]
        first = _native.capture(original.pid)
        with isolated(rootfs, workspace / "fork", layers) as fork:
            assert restore(fork, first).exit_code == 0
            tracking = _native.WriteTracking()
            for number in range(4):
                tell(fork, f"step-{number}")
                assert wait_for(fork, f"{FILES}/done-{number}") == "done"
                template = _native.capture(fork.pid, parent=first, tracking=tracking)
                assert template.counts["extent_bytes"] < MEMORY_BYTES // 4
                with isolated(rootfs, workspace / f"again-{number}", layers) as again:
                    verify(again, template)
