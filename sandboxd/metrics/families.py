"""Every metric that a scrape has, by name: counters, gauges and latencies of one daemon. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sandboxd.metrics.exposition import Family, HistogramFamily, Labels
from sandboxd.metrics.instruments import Instruments


@dataclass(frozen=True)
class ProcessFigures:
    """Of the daemon itself. Times are in seconds, the start's since 1970."""

    start_s: float
    cpu_s: float
    memory: int
    fds: int
    max_fds: int


@dataclass(frozen=True)
class NodeFigures:
    """What there is at the moment of a scrape. Sizes are in bytes."""

    version: str
    storage_backend: str
    sandboxes: Mapping[str, int]
    """By state."""
    standing: Mapping[str, int]
    """By what they are of: `image` or `template`."""
    standing_templates: int
    creates_waiting: int
    templates: int
    leases: int
    commands: int
    memory_committed: int
    memory_private: int
    memory_shared: int
    pool: int
    pool_limit: int
    process: ProcessFigures


COUNTERS: Mapping[str, tuple[str, str]] = {
    "sandboxes_created": ("venus_sandboxes_created_total", "Sandboxes made, forks too."),
    "sandboxes_forked": ("venus_sandboxes_forked_total", "Of them, those of a template."),
    "standing_taken": ("venus_standing_taken_total", "Of them, those launched ahead."),
    "sandboxes_adopted": ("venus_sandboxes_adopted_total", "Found by the daemon at its start."),
    "sandboxes_destroyed": ("venus_sandboxes_destroyed_total", "Removed, nothing is left."),
    "creates_failed": ("venus_creates_failed_total", "Admitted, and did not come to run."),
    "creates_queued": ("venus_creates_queued_total", "Creates that had to wait for a turn."),
    "creates_refused": ("venus_creates_refused_total", "Creates that were not admitted."),
    "snapshots": ("venus_snapshots_total", "Captures, also those of forks of live sandboxes."),
    "templates_evicted": ("venus_templates_evicted_total", "Idle templates that went for room."),
    "execs_started": ("venus_execs_started_total", "Commands started."),
    "execs_failed": ("venus_execs_failed_total", "Commands that could not be started."),
    "file_operations": ("venus_file_operations_total", "File operations asked for."),
    "oom_kills": ("venus_oom_kills_total", "Ends of commands and sandboxes for want of memory."),
}  # fmt: skip
"""Fields of `ServiceCounters` → name and meaning."""


def families(
    figures: NodeFigures, counters: Mapping[str, int], instruments: Instruments
) -> Iterator[Family | HistogramFamily]:
    """All of them, each with its samples."""
    yield _gauge(
        "venus_build_info",
        "1; the daemon's version and the kind of its storage.",
        1,
        {"version": figures.version, "storage": figures.storage_backend},
    )
    for field, (name, help_text) in COUNTERS.items():
        yield Family(name, "counter", help_text, (({}, counters[field]),))
    yield _by("counter", "venus_sandboxes_ended_total", "Ends of sandboxes.", "reason",
              {reason.value: count for reason, count in instruments.ends.items()})  # fmt: skip
    yield _by("counter", "venus_errors_total", "Errors answered to clients.", "code",
              instruments.errors)  # fmt: skip
    yield from _gauges(figures)
    yield from _latencies(instruments)
    yield from _process(figures.process)


def _gauges(figures: NodeFigures) -> Iterator[Family]:
    yield _by("gauge", "venus_sandboxes", "Sandboxes.", "state", figures.sandboxes)
    yield _by("gauge", "venus_standing_sandboxes", "Launched ahead, not yet asked for.", "origin",
              figures.standing)  # fmt: skip
    for name, help_text, value in (
        ("venus_standing_templates", "Templates with such sandboxes.", figures.standing_templates),
        ("venus_creates_waiting", "Creates that wait for a turn.", figures.creates_waiting),
        ("venus_templates", "Templates.", figures.templates),
        ("venus_leases", "Leases.", figures.leases),
        ("venus_commands", "Commands and file operations not yet over.", figures.commands),
        ("venus_memory_committed_bytes", "Memory limits, together.", figures.memory_committed),
        ("venus_memory_private_bytes", "Held by single sandboxes.", figures.memory_private),
        ("venus_memory_shared_bytes", "Of templates, once for each fork.", figures.memory_shared),
        ("venus_page_pool_bytes", "Memory of all templates, each page once.", figures.pool),
        ("venus_page_pool_limit_bytes", "Most that it may be.", figures.pool_limit),
    ):
        yield _gauge(name, help_text, value)


def _latencies(instruments: Instruments) -> Iterator[HistogramFamily]:
    for name, help_text, by_pool in (
        ("venus_create_duration_seconds", "Creates of an image.", instruments.create),
        ("venus_fork_duration_seconds", "Forks of a template, a request each.", instruments.fork),
    ):
        samples = tuple(({"pool": pool}, each) for pool, each in by_pool.items())
        yield HistogramFamily(name, help_text, samples)
    for name, help_text, histogram in (
        ("venus_create_wait_seconds", "Of creates and forks: waiting for a turn.",
         instruments.create_wait),
        ("venus_exec_start_duration_seconds", "Commands, until they run.", instruments.exec_start),
        ("venus_snapshot_duration_seconds", "Captures.", instruments.snapshot),
        ("venus_destroy_duration_seconds", "Removals of sandboxes.", instruments.destroy),
    ):  # fmt: skip
        yield HistogramFamily(name, help_text, (({}, histogram),))


def _process(figures: ProcessFigures) -> Iterator[Family]:
    """By the names that Prometheus' own libraries give them."""
    yield Family("process_cpu_seconds_total", "counter", "Processor time of the daemon.",
                 (({}, figures.cpu_s),))  # fmt: skip
    for name, help_text, value in (
        ("process_start_time_seconds", "Start of the daemon, since 1970.", figures.start_s),
        ("process_resident_memory_bytes", "Memory of the daemon.", figures.memory),
        ("process_open_fds", "Open descriptors of the daemon.", figures.fds),
        ("process_max_fds", "Most that it may open.", figures.max_fds),
    ):
        yield _gauge(name, help_text, value)


def _gauge(name: str, help_text: str, value: float, labels: Labels | None = None) -> Family:
    return Family(name, "gauge", help_text, ((labels or {}, value),))


def _by(
    kind: Literal["counter", "gauge"],
    name: str,
    help_text: str,
    label: str,
    values: Mapping[str, int],
) -> Family:
    samples = tuple(({label: key}, value) for key, value in values.items())
    return Family(name, kind, help_text, samples)
