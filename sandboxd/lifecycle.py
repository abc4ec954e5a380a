"""Life of a sandbox as a table: state × event → state. Pure; the service acts on it.

    creating ──ready──▶ running ──destroy/init died/expired──▶ stopping ──destroyed──▶ gone
        │                 ▲ │
        │            resumed│paused
        │                 │ ▼
        ├──paused──────▶ paused ──destroy/init died/expired──▶ stopping
        └──create failed──▶ stopping

A sandbox that an earlier daemon paused comes straight into `paused`.

`stopping` is the only way out, because whatever ended the sandbox, its mounts, groups and files
are still to be removed; `gone` is final and promises that nothing of it is left.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class State(enum.StrEnum):
    """Where a sandbox is in its life."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    GONE = "gone"


LIVE = frozenset({State.RUNNING, State.PAUSED})
"""It is there, and nobody has asked for its end."""


class Event(enum.Enum):
    """What can happen to a sandbox."""

    READY = "ready"
    PAUSED = "paused"
    RESUMED = "resumed"
    CREATE_FAILED = "create failed"
    DESTROY_REQUESTED = "destroy requested"
    EXPIRED = "expired"
    INIT_DIED = "init died"
    DESTROYED = "destroyed"


class EndReason(enum.StrEnum):
    """Why a sandbox ended, as later requests for it are told."""

    DESTROYED = "destroyed"
    EXPIRED = "expired"
    OOM = "oom"
    KILLED = "killed"
    CREATE_FAILED = "create_failed"
    SHUTDOWN = "shutdown"
    LEASE_ENDED = "lease_ended"
    CAPTURE_CUT = "capture_cut"


class ImpossibleEvent(RuntimeError):
    """A fault of the caller: this event cannot happen in this state."""


TRANSITIONS: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.CREATING, Event.READY): State.RUNNING,
        (State.CREATING, Event.CREATE_FAILED): State.STOPPING,
        (State.CREATING, Event.PAUSED): State.PAUSED,
        (State.RUNNING, Event.PAUSED): State.PAUSED,
        (State.PAUSED, Event.RESUMED): State.RUNNING,
        (State.PAUSED, Event.DESTROY_REQUESTED): State.STOPPING,
        (State.PAUSED, Event.EXPIRED): State.STOPPING,
        (State.PAUSED, Event.INIT_DIED): State.STOPPING,
        (State.RUNNING, Event.DESTROY_REQUESTED): State.STOPPING,
        (State.RUNNING, Event.EXPIRED): State.STOPPING,
        (State.RUNNING, Event.INIT_DIED): State.STOPPING,
        # While it is being taken down, its init dies, and others may ask for the same.
        (State.STOPPING, Event.DESTROY_REQUESTED): State.STOPPING,
        (State.STOPPING, Event.EXPIRED): State.STOPPING,
        (State.STOPPING, Event.INIT_DIED): State.STOPPING,
        (State.STOPPING, Event.DESTROYED): State.GONE,
    }
)


def next_state(state: State, event: Event) -> State:
    """The state after `event`; `ImpossibleEvent` where the table has no entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ImpossibleEvent(
            f"a sandbox that is {state.value} cannot see: {event.value}"
        ) from None
