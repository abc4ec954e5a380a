"""Leases: what a client makes under one goes when the client no longer renews it.

A lease belongs to a tenant and has a time to live, which each renewal begins anew. When that is
over, or the lease is released, the sandboxes and templates that were made under it are removed;
those of others stay. State files keep leases over a restart of the daemon, with at least a grace in
which their owners can find the new one. What names a lease that is not known there is removed.

The lease's file goes first: from then on nothing comes to be under it, and a daemon that is killed
amid the removal leaves it to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxd.bounds import checked_lease_ttl
from sandboxd.config import Config
from sandboxd.errors import InternalError, LimitExceeded, NotFound, VenusError
from sandboxd.sandbox import boottime_s
from sandboxd.state_files import replace_file

_LOG = logging.getLogger("sandboxd")
STATE_VERSION = 1
GRACE_S = 60.0
"""After a restart a lease has at least this left, or its whole time if that is shorter."""
_SUFFIX = ".json"


@dataclass(frozen=True)
class Lease:
    """Also what its state file holds."""

    lease_id: str
    tenant_uid: int
    ttl_s: float
    expires_boottime_s: float
    boot_id: str
    created_at: float
    labels: dict[str, str] = field(default_factory=dict)


class LeaseFiles:
    """One file per lease, replaced as a whole. Blocking; each call is a few short system calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, lease: Lease) -> None:
        """Create or replace the file."""
        path = self._directory / f"{lease.lease_id}{_SUFFIX}"
        temporary = path.with_suffix(".tmp")
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            table = {"version": STATE_VERSION, **dataclasses.asdict(lease)}
            replace_file(path, temporary, json.dumps(table).encode())
        except OSError as error:
            raise InternalError(
                "the state file cannot be written",
                operation="remember lease",
                object=lease.lease_id,
                cause=str(error),
            ) from error

    def forget(self, lease_id: str) -> None:
        """Remove the file; no error if there is none."""
        (self._directory / f"{lease_id}{_SUFFIX}").unlink(missing_ok=True)

    def read_all(self) -> list[Lease]:
        """What can be read; anything else is removed."""
        found = []
        for path in sorted(self._directory.glob("*")) if self._directory.exists() else []:
            try:
                table: Any = json.loads(path.read_bytes()) if path.suffix == _SUFFIX else None
                if not isinstance(table, dict) or table.pop("version", None) != STATE_VERSION:
                    raise ValueError("another version")
                found.append(Lease(**table))
            except (OSError, ValueError, TypeError):
                with contextlib.suppress(OSError):
                    path.unlink()
        return found

    def close(self) -> None:
        """Nothing of them is left."""
        for lease in self.read_all():
            self.forget(lease.lease_id)
        with contextlib.suppress(OSError):
            self._directory.rmdir()


class Leases:
    """Those of this daemon. Touched on the event loop only."""

    def __init__(self, config: Config, boot_id: str) -> None:
        self._config = config
        self._boot_id = boot_id
        self._files = LeaseFiles(config.leases_dir)
        self._leases: dict[str, Lease] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.on_end: list[Callable[[str], Awaitable[None]]] = []
        """Called with the id of one that has ended, in order: whoever made something under it
        removes that."""

    def recover(self) -> None:
        """Take over those of an earlier daemon of this boot."""
        now = boottime_s()
        for lease in self._files.read_all():
            if lease.boot_id != self._boot_id:
                self._files.forget(lease.lease_id)
                continue
            deadline = max(lease.expires_boottime_s, now + min(lease.ttl_s, GRACE_S))
            self._keep(dataclasses.replace(lease, expires_boottime_s=deadline))

    def close(self) -> None:
        """The daemon is being stopped, and removes all there is."""
        for timer in self._timers.values():
            timer.cancel()
        self._leases.clear()
        self._files.close()

    @property
    def ids(self) -> frozenset[str]:
        """Of those that have not ended."""
        return frozenset(self._leases)

    def create(self, tenant_uid: int, ttl_s: float, labels: dict[str, str]) -> Lease:
        """A new one, which counts from now."""
        checked_lease_ttl(self._config, ttl_s, "create lease")
        held = sum(each.tenant_uid == tenant_uid for each in self._leases.values())
        limit = self._config.max_leases_per_tenant
        if held >= limit:
            raise LimitExceeded(
                "no further lease is admitted",
                operation="create lease",
                object=f"tenant {tenant_uid}",
                cause=f"max_leases_per_tenant is {limit}",
            )
        lease = Lease(
            lease_id=f"ls-{secrets.token_hex(8)}",
            tenant_uid=tenant_uid,
            ttl_s=ttl_s,
            expires_boottime_s=boottime_s() + ttl_s,
            boot_id=self._boot_id,
            created_at=time.time(),
            labels=labels,
        )
        self._files.write(lease)
        self._keep(lease)
        return lease

    def renew(self, lease: Lease, ttl_s: float | None) -> Lease:
        """Its time counts from now on, by `ttl_s` where that is given."""
        ttl_s = (
            lease.ttl_s if ttl_s is None else checked_lease_ttl(self._config, ttl_s, "renew lease")
        )
        renewed = dataclasses.replace(lease, ttl_s=ttl_s, expires_boottime_s=boottime_s() + ttl_s)
        self._files.write(renewed)
        self._keep(renewed)
        return renewed

    async def release(self, lease: Lease) -> None:
        """Returns when nothing is left of what was made under it."""
        # Shielded: a removal goes on when the request that asked for it is cancelled.
        await asyncio.shield(self._end(lease.lease_id))

    def visible(self, peer_uid: int) -> list[Lease]:
        """The peer's own, or all for root."""
        return [each for each in self._leases.values() if peer_uid in (0, each.tenant_uid)]

    def find(self, peer_uid: int, lease_id: str, operation: str) -> Lease:
        """The lease, if the peer may see it and it has not ended."""
        lease = self._leases.get(lease_id)
        if lease is None or peer_uid not in (0, lease.tenant_uid):
            raise NotFound(
                "there is no such lease",
                operation=operation,
                object=lease_id[:200],
                cause="it may have ended: nobody renewed it",
            )
        return lease

    def require(self, lease_id: str, tenant_uid: int, operation: str) -> None:
        """What comes to be for this tenant may come to be under it; "" is no lease."""
        if lease_id and self.find(tenant_uid, lease_id, operation).tenant_uid != tenant_uid:
            raise NotFound("it is another tenant's", operation=operation, object=lease_id)

    def _keep(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        if (timer := self._timers.pop(lease.lease_id, None)) is not None:
            timer.cancel()
        delay_s = max(0.0, lease.expires_boottime_s - boottime_s())
        loop = asyncio.get_running_loop()
        self._timers[lease.lease_id] = loop.call_later(delay_s, self._expire, lease.lease_id)

    def _expire(self, lease_id: str) -> None:
        _LOG.info("lease %s was not renewed", lease_id)
        self._end(lease_id)

    def _end(self, lease_id: str) -> asyncio.Task[None]:
        self._files.forget(lease_id)
        self._leases.pop(lease_id, None)
        if (timer := self._timers.pop(lease_id, None)) is not None:
            timer.cancel()
        task = asyncio.ensure_future(self._remove_members(lease_id))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _remove_members(self, lease_id: str) -> None:
        for each in self.on_end:
            try:
                await each(lease_id)
            except VenusError as error:
                _LOG.error("end lease %s: %s", lease_id, error)
