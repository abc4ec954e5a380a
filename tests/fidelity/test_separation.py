"""What one writes after the snapshot is invisible to every other, and a fork can be forked."""

from __future__ import annotations

import re
from pathlib import Path

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import READY, wait_for
from tests.support.init_harness import RawSandbox

PROGRAM = """
import os, time
state = bytearray(os.urandom(1 << 20)) * 8
number = 0
open('/var/tmp/ready.new', 'w').write('ready'); os.rename('/var/tmp/ready.new', '/var/tmp/ready')
while True:
    if os.path.exists('/var/tmp/ask'):
        text = open('/var/tmp/ask').read()
        os.unlink('/var/tmp/ask')
        previous = bytes(state[:8]).hex()
        state[:8] = text.encode()[:8].ljust(8)
        number += 1
        import zlib
        with open('/var/tmp/answer.new', 'w') as out:
            out.write(f'{number} {previous} {zlib.crc32(state[8:])}')
        os.rename('/var/tmp/answer.new', '/var/tmp/answer')
    time.sleep(0.005)
"""


def ask(sandbox: RawSandbox, word: str) -> list[str]:
    script = f"rm -f /var/tmp/answer; echo -n {word} > /var/tmp/a; mv /var/tmp/a /var/tmp/ask"
    assert sandbox.shell(script).code == 0
    return wait_for(sandbox, "/var/tmp/answer").split()


def test_processes_that_are_just_ending(rootfs: Path, workspace: Path) -> None:
    """Whenever the stop comes: one that has ended and is not gone yet is no traced one, and its
    parent finds it as the zombie that it is."""
    with isolated(rootfs, workspace / "a", []) as original:
        original.start("sh", "-c", "while :; do (exit 3) & (exit 4) & wait; done")
        for _ in range(40):
            template = _native.capture(original.pid)
        with isolated(rootfs, workspace / "b", []) as fork:
            assert restore(fork, template).exit_code == 0


def private_kib(sandbox: RawSandbox) -> int:
    """Anonymous memory of all restored processes: what only this sandbox holds."""
    script = "cat /proc/[0-9]*/smaps_rollup 2>/dev/null"
    text = sandbox.shell(script).stdout.decode()
    return sum(int(kib) for kib in re.findall(r"^Anonymous:\s+(\d+) kB", text, re.M))


def test_forks_of_forks_are_separate(rootfs: Path, workspace: Path) -> None:
    with isolated(rootfs, workspace / "a", []) as original:
        assert original.shell("mkdir -p /var/tmp").code == 0
        original.start("python3", "-c", PROGRAM)
        assert wait_for(original, READY) == "ready"
        first = _native.capture(original.pid, [], lambda: freeze(original.upper, workspace / "l1"))
        assert ask(original, "original")[0] == "1"
        with isolated(rootfs, workspace / "b", [workspace / "l1"]) as child:
            assert restore(child, first).exit_code == 0
            before = private_kib(child)
            number, untouched, checksum = ask(child, "child")
            assert number == "1" and untouched != b"original".hex()
            assert before < 2048, "a fork that has written nothing holds almost nothing"
            second = _native.capture(
                child.pid, [], lambda: freeze(child.upper, workspace / "l2"), parent=first
            )
            assert second.counts["inherited_bytes"] > 8 << 20
            assert second.counts["extent_bytes"] < 2 << 20, "what was not written is not copied"
            layers = [workspace / "l2", workspace / "l1"]
            with isolated(rootfs, workspace / "c", layers) as grandchild:
                assert restore(grandchild, second).exit_code == 0
                answer = ask(grandchild, "grand")
                assert answer == ["2", b"child   ".hex(), checksum]
            assert ask(child, "again")[:2] == ["2", b"child   ".hex()]
        assert ask(original, "again")[:2] == ["2", b"original".hex()]
