"""The table of `top`: what two readings say, in which order, and how much of it fits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxd.cli.units import show_duration, show_size, table
from sandboxd.client import SandboxState, SandboxStats

HEADER = (
    "ID", "STATE", "CPU%", "PRIVATE", "SHARED", "MEMORY", "LIMIT", "PIDS", "AGE", "TEMPLATE",
    "LEASE",
)  # fmt: skip
_HEAD_LINES = 3  # above the first sandbox


@dataclass(frozen=True)
class Row:
    """One sandbox. `cpu_percent` is of one core, as `top` has it; None: it was read only once."""

    stats: SandboxStats
    cpu_percent: float | None


SORT_KEYS: Mapping[str, Callable[[Row], Any]] = {
    "cpu": lambda row: -(row.cpu_percent or 0.0),
    "private": lambda row: -row.stats.metrics.private_bytes,
    "shared": lambda row: -row.stats.metrics.shared_bytes,
    "memory": lambda row: -row.stats.metrics.memory_bytes,
    "pids": lambda row: -row.stats.metrics.pids,
    "age": lambda row: row.stats.created_at,
    "id": lambda row: row.stats.id,
}
"""What comes first: the largest, the oldest, the first of the alphabet."""


def rows(before: Sequence[SandboxStats], now: Sequence[SandboxStats], sort: str) -> list[Row]:
    """Those that there are now, in order; equal ones by their ids."""
    earlier = {each.id: each for each in before}
    found = [Row(each, _cpu_percent(earlier.get(each.id), each)) for each in now]
    key = SORT_KEYS[sort]
    return sorted(found, key=lambda row: (key(row), row.stats.id))


def _cpu_percent(before: SandboxStats | None, now: SandboxStats) -> float | None:
    if before is None or now.read_at_s <= before.read_at_s:
        return None
    used_s = max(0.0, now.metrics.cpu_s - before.metrics.cpu_s)
    return 100 * used_s / (now.read_at_s - before.read_at_s)


def summary(found: Sequence[Row]) -> str:
    """One line about all of them."""
    running = sum(row.stats.state is SandboxState.RUNNING for row in found)
    paused = sum(row.stats.state is SandboxState.PAUSED for row in found)
    private = sum(row.stats.metrics.private_bytes for row in found)
    limits = sum(row.stats.limits.memory_bytes for row in found)
    cpu = sum(row.cpu_percent or 0.0 for row in found)
    return (
        f"{len(found)} sandboxes: {running} running, {paused} paused; CPU {cpu:.1f}%; "
        f"private {show_size(private)} of {show_size(limits)}"
    )


def shown(found: Sequence[Row], now: float, lines: int | None = None) -> str:
    """Summary and table, of at most so many lines; what does not fit is counted."""
    room = len(found) if lines is None else min(len(found), max(0, lines - _HEAD_LINES))
    if room < len(found):
        room = max(0, room - 1)
    text = f"{summary(found)}\n\n{table(HEADER, [_cells(row, now) for row in found[:room]])}"
    return text if room == len(found) else f"{text}\n… {len(found) - room} more"


def _cells(row: Row, now: float) -> tuple[str, ...]:
    stats, metrics = row.stats, row.stats.metrics
    return (
        stats.id,
        stats.state.value,
        "-" if row.cpu_percent is None else f"{row.cpu_percent:.1f}",
        show_size(metrics.private_bytes),
        show_size(metrics.shared_bytes),
        show_size(metrics.memory_bytes),
        show_size(stats.limits.memory_bytes),
        str(metrics.pids),
        show_duration(now - stats.created_at),
        stats.template or "-",
        stats.lease or "-",
    )


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The same for programs; sizes in bytes."""
    return [
        {
            "id": row.stats.id,
            "state": row.stats.state.value,
            "cpu_percent": row.cpu_percent,
            "private_bytes": row.stats.metrics.private_bytes,
            "shared_bytes": row.stats.metrics.shared_bytes,
            "memory_bytes": row.stats.metrics.memory_bytes,
            "memory_limit_bytes": row.stats.limits.memory_bytes,
            "pids": row.stats.metrics.pids,
            "created_at": row.stats.created_at,
            "template": row.stats.template,
            "lease": row.stats.lease,
        }
        for row in found
    ]
