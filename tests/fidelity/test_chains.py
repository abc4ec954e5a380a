"""A fork of a fork of a fork …, each of which writes: none costs more than those before it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import READY, wait_for
from tests.fidelity.test_write_tracking import FILES, MEMORY_BYTES, tell, verify

DEPTH = int(os.environ.get("VENUS_CHAIN_DEPTH", "100"))
WARM_UP = 15
SHAPE = ("mappings", "pieces", "extents")


def test_chains_stay_as_cheap_as_they_were(
    rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    copied, referenced, shapes = [], [], []
    with isolated(rootfs, workspace / "original", [program_layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start("/t/writer")
        assert wait_for(original, READY) == "ready"
        layers = [freeze(original.upper, workspace / "frozen"), program_layer]
        template = _native.capture(original.pid)
    with contextlib.ExitStack() as stack:
        for number in range(DEPTH):
            fork = stack.enter_context(isolated(rootfs, workspace / f"fork-{number}", layers))
            result = restore(fork, template)
            assert (result.exit_code, result.failure) == (0, "")
            tell(fork, f"step-{number}")
            assert wait_for(fork, f"{FILES}/done-{number}") == "done"
            template = _native.capture(fork.pid, parent=template, tracking=_native.WriteTracking())
            stack.close()
            copied.append(template.counts["extent_bytes"])
            referenced.append(template.counts.get("inherited_bytes", 0))
            shapes.append([template.counts[key] for key in SHAPE])
    with isolated(rootfs, workspace / "last", layers) as last:
        verify(last, template)
    settled = copied[WARM_UP:]
    assert sorted(settled)[len(settled) // 2] < MEMORY_BYTES / 4
    assert sum(settled) / len(settled) < MEMORY_BYTES / 2, "copied whole only now and then"
    assert max(referenced) < 4 * MEMORY_BYTES, "what nobody needs does not stay"
    early, late = shapes[WARM_UP : DEPTH // 2], shapes[DEPTH // 2 :]
    for position in range(len(SHAPE)):
        assert max(row[position] for row in late) <= 1.2 * max(row[position] for row in early)
