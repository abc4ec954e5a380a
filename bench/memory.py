"""What sandboxes cost in memory: of their processes, and of the whole machine."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from sandboxd.client import Sandbox

# Where kernel objects show up, beside what processes hold.
PARTS = ("AnonPages", "Shmem", "PageTables", "KernelStack", "SUnreclaim", "SReclaimable", "Percpu")


def meminfo_kib() -> dict[str, int]:
    """All fields of /proc/meminfo."""
    text = Path("/proc/meminfo").read_text()
    return {name: int(size) for name, size in re.findall(r"^(\S+):\s+(\d+)", text, re.M)}


def available_mib() -> int:
    """What may still be used without harm to others."""
    return meminfo_kib()["MemAvailable"] // 1024


def rollup_kib(pid: int) -> dict[str, int]:
    """Sums over the mappings of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(size) for name, size in re.findall(r"^(\S+):\s+(\d+) kB", text, re.M)}


def processes(sandbox: Sandbox) -> list[int]:
    """Init first, then all others: they are its descendants, also those whose parent is gone."""
    assert sandbox.info.init_pid is not None
    init = psutil.Process(sandbox.info.init_pid)
    return [init.pid, *(each.pid for each in init.children(recursive=True))]


def per_sandbox(sandboxes: Sequence[Sandbox], before: dict[str, int]) -> dict[str, Any]:
    """By sandbox, with init: medians of what its processes hold, and by how much the machine's
    figures changed since `before`, over all of them together."""
    changed = {name: size - before[name] for name, size in meminfo_kib().items()}
    of_init, in_all, anonymous = [], [], []
    for sandbox in sandboxes:
        init, *others = [rollup_kib(pid) for pid in processes(sandbox)]
        of_init.append(init["Pss"])
        in_all.append(init["Pss"] + sum(each["Pss"] for each in others))
        anonymous.append(init["Anonymous"] + sum(each["Anonymous"] for each in others))
    count = len(sandboxes)
    return {
        "sandboxes": count,
        "pss_kib": statistics.median(in_all),
        "pss_max_kib": max(in_all),
        "pss_init_kib": statistics.median(of_init),
        "anonymous_kib": statistics.median(anonymous),
        "private_kib": statistics.median(s.metrics().private_bytes // 1024 for s in sandboxes),
        "memavailable_kib": round(-changed["MemAvailable"] / count, 1),
        "parts_kib": {name: round(changed[name] / count, 1) for name in PARTS},
    }
