"""A connection to outside the sandbox is refused, or comes back reset where that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import GO, IS_FORK, READY, RESULT, touch, wait_for
from tests.support.outside import CLIENT, join, server_outside


def test_outside(rootfs: Path, workspace: Path) -> None:
    with (
        server_outside() as server,
        isolated(rootfs, workspace / "original", []) as original,
    ):
        assert original.shell("mkdir -p /var/tmp").code == 0
        join(original.pid, server)
        original.start("python3", "-c", CLIENT)
        assert wait_for(original, READY) == "ready"
        with pytest.raises(_native.Refused, match="its other end is outside the sandbox"):
            _native.capture(original.pid)
        template = _native.capture(
            original.pid,
            [],
            lambda: freeze(original.upper, workspace / "frozen"),
            on_external="reset",
        )
        with isolated(rootfs, workspace / "fork", [workspace / "frozen"]) as fork:
            assert restore(fork, template).failure == ""
            touch(fork, IS_FORK)
            touch(fork, GO)
            assert wait_for(fork, RESULT) == "ConnectionResetError"
        touch(original, GO)
        assert wait_for(original, RESULT) == "HELLO"
