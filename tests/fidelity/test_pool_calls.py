"""Calls on pool memory go on while the sandbox is captured again and again."""

from __future__ import annotations

import re
import time
from pathlib import Path

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import GO, READY, RESULT, run_row, touch, wait_for

GENERATIONS = 3
EXTEND = """
import os, time
block = os.urandom(1 << 20)
grown = bytearray(block * 20)
open('/var/tmp/ready.new', 'w').write('ready'); os.rename('/var/tmp/ready.new', '/var/tmp/ready')
while not os.path.exists('/var/tmp/go'):
    time.sleep(0.005)
grown.extend(bytes(100 << 20))
right = grown[:20 << 20] == block * 20 and grown.count(0, 20 << 20) == 100 << 20
open('/var/tmp/r', 'w').write('ok' if right else 'wrong')
os.rename('/var/tmp/r', '/var/tmp/result')
time.sleep(1000)
"""


def test_captures_amid_purges(rootfs: Path, program_layer: Path, workspace: Path) -> None:
    """Each generation is captured while its threads purge, and all of them stay right."""
    with isolated(rootfs, workspace / "original", [program_layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start("/t/purge")
        assert wait_for(original, READY) == "ready"
        frozen = workspace / "frozen"
        template = _native.capture(original.pid, [], lambda: freeze(original.upper, frozen))
        sandboxes = [original]
        layers = [frozen, program_layer]
        try:
            for number in range(GENERATIONS):
                fork = isolated(rootfs, workspace / f"fork-{number}", layers)
                sandboxes.append(fork.__enter__())
                result = restore(fork, template)
                assert (result.exit_code, result.failure) == (0, "")
                parent = template
                for _ in range(3):
                    time.sleep(0.05)
                    template = _native.capture(fork.pid, [], parent=parent)
            for sandbox in sandboxes:
                touch(sandbox, GO)
                assert wait_for(sandbox, RESULT) == "ok"
        finally:
            for sandbox in sandboxes[1:]:
                sandbox.__exit__(None, None, None)


def test_memory_of_a_template_that_nobody_knows(
    rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    """As after a daemon that was killed, and a template that was removed: captured without its
    parent, the memory of a fork is copied, and still stands for anonymous memory."""
    with isolated(rootfs, workspace / "original", [program_layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start("/t/writer")
        assert wait_for(original, READY) == "ready"
        layers = [freeze(original.upper, workspace / "frozen"), program_layer]
        template = _native.capture(original.pid)
    for generation in range(3):
        with isolated(rootfs, workspace / f"fork-{generation}", layers) as fork:
            result = restore(fork, template)
            assert (result.exit_code, result.failure) == (0, "")
            for step in range(3 * generation, 3 * generation + 3):
                touch(fork, f"/var/tmp/step-{step}")
                assert wait_for(fork, f"/var/tmp/done-{step}") == "done"
            template = _native.capture(fork.pid)
            layers.insert(0, freeze(fork.upper, workspace / f"frozen-{generation}"))
            maps = fork.shell("cat /proc/[0-9]*/maps").stdout.decode()
            assert not re.search(r"r-xp .*venus-extent", maps), "the old plan came along"
            touch(fork, GO)
            assert wait_for(fork, RESULT) == "ok"


def test_python_grows_its_memory(rootfs: Path, workspace: Path) -> None:
    layer = workspace / "nothing"
    layer.mkdir()
    row = run_row(rootfs, layer, workspace, ["python3", "-c", EXTEND], forks=1)
    assert row.original == "ok"
    assert row.forks == ["ok", "ok"]
