"""SIGSTOP cannot be blocked, so it may come while a capture makes a process call something."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import GO, READY, RESULT, touch, wait_for
from tests.kernel.test_daemon_recovery import eventually


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]


def test_a_stop_signal_amid_the_capture_is_neither_lost_nor_in_the_way(
    rootfs: Path, program_layer: Path, workspace: Path
) -> None:
    with isolated(rootfs, workspace / "original", [program_layer]) as original:
        assert original.shell("mkdir -p /var/tmp && chmod 1777 /var/tmp").code == 0
        original.start("/t/writer")
        assert wait_for(original, READY) == "ready"
        [program] = psutil.Process(original.pid).children()
        maps = Path(f"/proc/{program.pid}/maps").read_text()
        layers = [freeze(original.upper, workspace / "frozen"), program_layer]
        template = _native.capture(
            original.pid, while_stopped=lambda: os.kill(program.pid, signal.SIGSTOP)
        )
        eventually(lambda: state_of(program.pid) == "T", "it is not stopped")
        assert Path(f"/proc/{program.pid}/maps").read_text() == maps
        with isolated(rootfs, workspace / "fork", layers) as fork:
            assert restore(fork, template).exit_code == 0
            touch(fork, GO)
            assert wait_for(fork, RESULT) == "ok"
        os.kill(program.pid, signal.SIGCONT)
        touch(original, GO)
        assert wait_for(original, RESULT) == "ok"
