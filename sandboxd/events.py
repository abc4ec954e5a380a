"""What happens to sandboxes, for whoever wants to follow it.

A ring holds the last events. A follower has a place of its own in it: one that is too slow loses
the oldest and is told how many, and nobody waits for it. Numbers begin at the microseconds since
1970 at the daemon's start: so those of a later daemon are higher, and a follower that comes back
with the number of an earlier one is told that it missed some, though not how many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxd.errors import LimitExceeded
from sandboxd.logs.fields import request_id

CAPACITY = 10_000
MAX_FOLLOWERS_PER_TENANT = 64
_BATCH = 256


@dataclass(frozen=True)
class SandboxEvent:
    """`type` is `created`, `started`, `adopted`, `exec`, `exited`, `oom`, `paused`, `resumed`,
    `snapshot`, `forked` or `killed`."""

    number: int
    time: float
    """Seconds since 1970."""
    type: str
    sandbox_id: str
    tenant_uid: int
    labels: Mapping[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)
    lease: str = ""
    template: str = ""
    """What it was made from."""
    request_id: str = ""
    """Of the request that the code which told of it was begun by."""

    def to_json(self) -> dict[str, Any]:
        """As a line of the stream has it."""
        return {
            "seq": self.number,
            "time": self.time,
            "type": self.type,
            "sandbox": self.sandbox_id,
            "labels": dict(self.labels),
            **self.details,
        }


@dataclass(frozen=True)
class Missed:
    """So many events were lost, of all sandboxes of the node; None: nobody knows how many."""

    count: int | None
    number: int
    """The last of them."""

    def to_json(self) -> dict[str, Any]:
        """As a line of the stream has it."""
        return {"type": "missed", "seq": self.number, "count": self.count}


class EventLog:
    """The ring. Touched on the event loop only; `emit` never waits."""

    def __init__(self, capacity: int = CAPACITY, first: int | None = None) -> None:
        self._first = time.time_ns() // 1000 if first is None else first
        self._next = self._first
        self._ring: list[SandboxEvent | None] = [None] * capacity
        self._waiting: list[asyncio.Future[None]] = []
        self._followers: dict[int, int] = {}
        self._closed = False

    def emit(
        self,
        kind: str,
        sandbox_id: str,
        tenant_uid: int,
        labels: Mapping[str, str],
        details: Mapping[str, Any],
        *,
        lease: str = "",
        template: str = "",
    ) -> None:
        """Something happened now."""
        event = SandboxEvent(
            self._next,
            time.time(),
            kind,
            sandbox_id,
            tenant_uid,
            labels,
            details,
            lease,
            template,
            request_id.get(),
        )
        self._ring[self._next % len(self._ring)] = event
        self._next += 1
        self._wake()

    def close(self) -> None:
        """Followers get what there is, and end."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    @property
    def _oldest(self) -> int:
        return max(self._first, self._next - len(self._ring))

    async def follow(
        self,
        peer_uid: int,
        matches: Callable[[SandboxEvent], bool],
        *,
        after: int | None = None,
        wait: bool = True,
    ) -> AsyncGenerator[list[SandboxEvent | Missed], None]:
        """Events that match, from the one behind number `after` on (None: that come from now on);
        first an empty list. Without `wait` it ends with those that there are.

        `LimitExceeded` for a peer that follows too often.
        """
        following = self._followers.get(peer_uid, 0)
        if following >= MAX_FOLLOWERS_PER_TENANT:
            raise LimitExceeded(
                f"{following} streams are open already",
                operation="follow events",
                object=f"tenant {peer_uid}",
                cause=f"at most {MAX_FOLLOWERS_PER_TENANT}",
            )
        self._followers[peer_uid] = following + 1
        try:
            place = self._next if after is None else after + 1
            yield []
            if not self._first <= place <= self._next:
                # Of another daemon's events, or of none.
                place = self._oldest
                yield [Missed(None, place - 1)]
            while True:
                if place < self._oldest:
                    missed = self._oldest - place
                    place = self._oldest
                    yield [Missed(missed, place - 1)]
                    continue  # more may have been lost meanwhile
                found, place = self._collect(place, matches)
                if found:
                    yield found
                elif place == self._next:
                    if self._closed or not wait:
                        return
                    change = asyncio.get_running_loop().create_future()
                    self._waiting.append(change)
                    await change
        finally:
            self._followers[peer_uid] -= 1
            if not self._followers[peer_uid]:
                del self._followers[peer_uid]

    def _collect(
        self, place: int, matches: Callable[[SandboxEvent], bool]
    ) -> tuple[list[SandboxEvent | Missed], int]:
        found: list[SandboxEvent | Missed] = []
        end = min(self._next, place + _BATCH)
        for number in range(place, end):
            event = self._ring[number % len(self._ring)]
            assert event is not None
            if matches(event):
                found.append(event)
        return found, end
