"""The lives of sandboxes as lines of the log: a follower of the events that clients follow, too.

So nobody waits for the log, and what it cannot keep up with is told as a number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from sandboxd.events import EventLog, Missed, SandboxEvent
from sandboxd.lifecycle import EndReason
from sandboxd.logs.fields import about

LOGGER = "sandboxd.sandboxes"
_LOG = logging.getLogger(LOGGER)
# No tenant's: its place among the followers is taken from nobody.
_FOLLOWER = -1
_LINES_AT_ONCE = 32

LEVELS: Mapping[str, int] = {
    "created": logging.INFO,
    "adopted": logging.INFO,
    "started": logging.DEBUG,
    "exec": logging.DEBUG,
    "exited": logging.DEBUG,
    "oom": logging.WARNING,
    "paused": logging.INFO,
    "resumed": logging.INFO,
    "snapshot": logging.INFO,
    "forked": logging.INFO,
    "killed": logging.INFO,
}


_ASKED_FOR = frozenset({"created", "started", "exec", "paused", "resumed", "snapshot", "forked"})


async def log_lives(events: EventLog, labels: Collection[str]) -> None:
    """Until the log of events is closed. `labels`: names of those that lines have."""
    async for batch in events.follow(_FOLLOWER, lambda event: _LOG.isEnabledFor(_level(event))):
        for number, event in enumerate(batch, 1):
            _write(event, labels)
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)  # what came meanwhile goes on


def _level(event: SandboxEvent) -> int:
    return LEVELS.get(event.type, logging.INFO)


def _is_asked_for(event: SandboxEvent) -> bool:
    """What happens by itself is told by code that some earlier request began."""
    return event.type in _ASKED_FOR or event.details.get("reason") == EndReason.DESTROYED


def _write(event: SandboxEvent | Missed, labels: Collection[str]) -> None:
    if isinstance(event, Missed):
        _LOG.warning("events were not logged", extra=about(event="missed", count=event.count))
        return
    shown = {name: value for name in labels if (value := event.labels.get(name))}
    fields: dict[str, object] = {
        "event": event.type,
        "sandbox": event.sandbox_id,
        "tenant": event.tenant_uid,
        "lease": event.lease,
        "labels": shown or None,
        "template": event.template,
        **event.details,
        "request": event.request_id if _is_asked_for(event) else None,
    }
    extra = about(**fields)
    _LOG.log(_level(event), "%s %s", event.type, event.sandbox_id, extra=extra)
