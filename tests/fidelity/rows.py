"""Runs one program of `programs/`: set-up, capture, forks; then all of them check themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxd import _native
from tests.fidelity.harness import Fork, freeze, isolated, restore
from tests.support.init_harness import RawSandbox

BUDGET_S = 20.0
READY, GO, RESULT, IS_FORK = (f"/var/tmp/{name}" for name in ("ready", "go", "result", "is-fork"))


@dataclass
class Row:
    original: str
    forks: list[str]
    counts: dict[str, int]
    restored: list[Fork]


def wait_for(sandbox: RawSandbox, path: str) -> str:
    """The content of a file of the sandbox, once it is there."""
    inside = Path(f"/proc/{sandbox.pid}/root{path}")
    deadline = time.monotonic() + BUDGET_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            return inside.read_text()
        time.sleep(0.005)
    return "no answer"


def touch(sandbox: RawSandbox, path: str) -> None:
    assert sandbox.run("touch", path).code == 0


def run_row(
    rootfs: Path,
    layer: Path,
    workspace: Path,
    argv: Sequence[str],
    forks: int = 2,
    user: str = "",
    leave_out: str = "",
) -> Row:
    with isolated(rootfs, workspace / "original", [layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start(*argv, user=user)
        ready = wait_for(original, READY)
        if ready != "ready":
            return Row(ready + " " + wait_for(original, RESULT), [], {}, [])
        template = _native.capture(
            original.pid,
            [],
            lambda: freeze(original.upper, workspace / "frozen"),
            leave_out=leave_out,
        )
        results: list[str] = []
        restored: list[Fork] = []

        def run_fork(name: str, of: _native.Template, layers: list[Path], again: bool) -> None:
            """Restores, and then a fork of that fork before either of them goes on."""
            with isolated(rootfs, workspace / name, layers) as fork:
                restored.append(restore(fork, of))
                if restored[-1].exit_code != 0:
                    results.append(f"restore failed: {restored[-1]}")
                    return
                if again:
                    frozen = workspace / f"frozen-{name}"
                    second = _native.capture(
                        fork.pid, [], lambda: freeze(fork.upper, frozen), parent=of
                    )
                    run_fork(f"{name}-again", second, [frozen, *layers], again=False)
                touch(fork, IS_FORK)
                touch(fork, GO)
                results.append(wait_for(fork, RESULT))

        for number in range(forks):
            again = number == 0 and not leave_out
            run_fork(f"fork-{number}", template, [workspace / "frozen", layer], again)
        touch(original, GO)
        return Row(wait_for(original, RESULT), results, template.counts, restored)
