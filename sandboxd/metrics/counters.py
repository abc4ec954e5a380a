"""What the daemon counts, as its info and its metrics tell it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ServiceCounters:
    """Counted since the daemon started."""

    sandboxes_created: int = 0
    sandboxes_forked: int = 0
    standing_taken: int = 0
    snapshots: int = 0
    templates_evicted: int = 0
    sandboxes_destroyed: int = 0
    sandboxes_adopted: int = 0
    creates_failed: int = 0
    creates_queued: int = 0
    creates_refused: int = 0
    execs_started: int = 0
    execs_failed: int = 0
    file_operations: int = 0
    oom_kills: int = 0
