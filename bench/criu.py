"""CRIU as a rival: the same program, dumped once and restored again and again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import warm
from bench.common import Sample
from bench.driver import timed_program

PR_SET_CHILD_SUBREAPER = 36
READY_DEADLINE_S = 120.0
LOOK_S = 0.05


def usable() -> bool:
    """Whether it is installed and can work on this kernel, which older ones cannot."""
    if shutil.which("criu") is None:
        return False
    return subprocess.run(["criu", "check"], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def restored(place: Path, mib: int) -> Iterator[Sample]:
    """Times a restore, until CRIU says that the program runs again. It does so outside of any
    sandbox, with the Python of the benchmark, which has numpy; ending it is not timed."""
    directory = place / "criu"
    directory.mkdir()
    pid = _dumped(directory, mib)
    restore = timed_program("exit", ["criu", "restore", "-D", str(directory), "--restore-detached"])
    assert restore is not None
    # What is restored is an orphan, and its number is free only once it has been reaped.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def sample() -> float:
        taken = restore()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return taken

    try:
        yield sample
    finally:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _dumped(directory: Path, mib: int) -> int:
    origin = warm.Origin("", Path(), numpy=True)
    _, *arguments = warm.python(origin, mib).argv
    said = directory / "said"
    with said.open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + READY_DEADLINE_S
        while said.read_bytes() != b"ready\n":
            if program.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the program said {said.read_bytes()!r}")
            time.sleep(LOOK_S)
        subprocess.run(["criu", "dump", "-t", str(program.pid), "-D", str(directory)], check=True)
    finally:
        program.kill()
        program.wait()
    return program.pid
