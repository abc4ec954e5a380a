"""The kernel's merging of equal pages, as a rival: for as long as a benchmark needs it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

PLACE = Path("/sys/kernel/mm/ksm")
OFF, ON, UNMERGE = 0, 1, 2  # of `run`
LOOK_S = 0.5
# Two passes find a page that was equal all the time: the first remembers, the second merges. It
# has converged when one more finds less than this share of what was found.
PASSES = 3
CONVERGED = 0.01
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def available() -> bool:
    """Whether this kernel has it and this process may switch it."""
    return os.access(PLACE / "run", os.W_OK)


def read(name: str) -> int:
    """One of its figures."""
    return int((PLACE / name).read_text())


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Afterwards its settings are as they were, and where it was off it has forgotten all."""
    were = {name: read(name) for name in ("pages_to_scan", "run")}
    try:
        yield
    finally:
        if were["run"] == OFF:
            write("run", UNMERGE)
        for name, value in were.items():
            write(name, value)


def write(name: str, value: int) -> None:
    """Change one of its settings."""
    (PLACE / name).write_text(str(value))


def switch_on(pages_to_scan: int) -> None:
    """It scans so many pages at a time; for use within `restored`."""
    write("pages_to_scan", pages_to_scan)
    write("run", ON)


def processor_s() -> float:
    """Processor time of its thread so far."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "ksmd":
            times = process.cpu_times()
            return float(times.user + times.system)
    raise RuntimeError("the kernel's thread ksmd is not there")


def converge(limit_s: float) -> dict[str, object]:
    """Waits until it finds nothing more, at most so long; says what that took."""
    begin, begin_processor = time.monotonic(), processor_s()
    passes, found, seen_pass = 0, 0, read("full_scans")
    converged = False
    while not converged and time.monotonic() - begin < limit_s:
        time.sleep(LOOK_S)
        now_pass = read("full_scans")
        if now_pass == seen_pass:
            continue
        passes, seen_pass = passes + now_pass - seen_pass, now_pass
        sharing = read("pages_sharing")
        converged = passes >= PASSES and sharing - found <= CONVERGED * sharing
        found = sharing
    return {
        "converged": converged,
        "seconds": round(time.monotonic() - begin, 1),
        "processor_s": round(processor_s() - begin_processor, 2),
        "passes": passes,
        "saved_kib": read("pages_sharing") * PAGE_KIB,
        "pages_to_scan": read("pages_to_scan"),
        "sleep_ms": read("sleep_millisecs"),
    }
