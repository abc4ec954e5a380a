"""What remains of a sleep is slept in memory of the plan; of how many plans does not matter."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import BUDGET_S, GO, READY, RESULT, touch, wait_for
from tests.support.init_harness import RawSandbox

PROGRAM = "/t/sleeper"
GENERATIONS = 6


def wait_until_asleep(sandbox: RawSandbox) -> None:
    """Its one process sleeps for long; what it does before and after takes no time."""
    deadline = time.monotonic() + BUDGET_S
    while b"sleep" not in sandbox.shell("cat /proc/[2-9]*/wchan").stdout:
        assert time.monotonic() < deadline, "it does not sleep"


def maps(sandbox: RawSandbox) -> list[bytes]:
    [pid] = sandbox.shell("pgrep -x sleeper").stdout.split()
    return sandbox.run("cat", b"/proc/%s/maps" % pid).stdout.splitlines()


def test_mappings_do_not_grow(rootfs: Path, program_layer: Path, workspace: Path) -> None:
    """A sleep that outlasts many generations has one piece of plan, the last."""
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(isolated(rootfs, workspace / "0", [program_layer]))
        assert sandbox.shell("mkdir -p /var/tmp").code == 0
        sandbox.start(PROGRAM)
        assert wait_for(sandbox, READY) == "ready"
        layers, parent, counts = [program_layer], None, []
        for generation in range(1, GENERATIONS):
            wait_until_asleep(sandbox)
            frozen = workspace / f"frozen-{generation}"
            parent = _native.capture(
                sandbox.pid, [], lambda a=sandbox, b=frozen: freeze(a.upper, b), parent=parent
            )
            layers = [frozen, *layers]
            sandbox = stack.enter_context(isolated(rootfs, workspace / str(generation), layers))
            assert restore(sandbox, parent).exit_code == 0
            counts.append(len(maps(sandbox)))
        # The first fork has written to pages beside some that it has not.
        assert len(set(counts[1:])) == 1, counts
        assert sandbox.shell("pkill -USR1 -x sleeper").code == 0
        touch(sandbox, GO)
        assert wait_for(sandbox, RESULT) == "ok"


def test_a_handler_that_interrupted_a_sleep(
    rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    """In a fork, on top of the plan: a fork of it must be able to return there."""
    with contextlib.ExitStack() as stack:
        original = stack.enter_context(isolated(rootfs, workspace / "a", [program_layer]))
        assert original.shell("mkdir -p /var/tmp").code == 0
        original.start(PROGRAM)
        assert wait_for(original, READY) == "ready"
        wait_until_asleep(original)
        first = _native.capture(original.pid, [], lambda: freeze(original.upper, workspace / "l1"))
        layers = [workspace / "l1", program_layer]
        fork = stack.enter_context(isolated(rootfs, workspace / "b", layers))
        assert restore(fork, first).exit_code == 0
        wait_until_asleep(fork)
        assert fork.shell("pkill -USR1 -x sleeper").code == 0
        assert wait_for(fork, "/var/tmp/in-handler") == "yes"
        second = _native.capture(
            fork.pid, [], lambda: freeze(fork.upper, workspace / "l2"), parent=first
        )
        again = stack.enter_context(isolated(rootfs, workspace / "c", [workspace / "l2", *layers]))
        assert restore(again, second).exit_code == 0
        for sandbox in (again, fork):
            touch(sandbox, GO)
            assert wait_for(sandbox, RESULT) == "ok"
