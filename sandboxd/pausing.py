"""Pausing a sandbox: all its processes stand still, init too, until it is resumed.

A paused sandbox keeps its memory and its place, and its time to live goes on. What needs it to run
answers `Conflict`. The state file says that it is paused, so that a daemon that starts later leaves
it so: it has no word with its init before it is resumed.

The start gate is closed meanwhile: nothing is half started in it, and nothing captures it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

from sandboxd.errors import Conflict, SandboxGone, VenusError
from sandboxd.inherited_execs import take_over_execs
from sandboxd.init_link import LinkClosed
from sandboxd.launch import LaunchedSandbox
from sandboxd.lifecycle import Event, State
from sandboxd.sandbox import LiveSandbox, boottime_s
from sandboxd.service import SandboxService

_LOG = logging.getLogger("sandboxd")
_PAUSE = "pause sandbox"
_RESUME = "resume sandbox"
_PAUSE_AGAIN_S = 10.0


async def pause(service: SandboxService, sandbox: LiveSandbox, ttl_s: float | None = None) -> None:
    """Returns when nothing of it runs; `Conflict` if it is paused already. `ttl_s`: it has a new
    time to live, as soon as it is paused."""
    sandbox.require_running(_PAUSE)
    async with sandbox.gate.closed(lambda: False, sandbox.sandbox_id):
        sandbox.require_running(_PAUSE)
        # Shielded: whoever asked may go away, but it stays neither here nor there.
        await asyncio.shield(asyncio.ensure_future(_pause(service, sandbox, ttl_s)))


async def _pause(service: SandboxService, sandbox: LiveSandbox, ttl_s: float | None) -> None:
    launched, _ = sandbox.require_running(_PAUSE)
    assert sandbox.record is not None
    try:
        await service.in_thread(lambda: launched.set_frozen(True))
        # It may have been destroyed meanwhile.
        sandbox.require_running(_PAUSE)
        record = dataclasses.replace(sandbox.record, paused=True)
        if ttl_s is not None:
            # With one write: were it to live on with its old time, it would be over at once.
            record = dataclasses.replace(record, expires_boottime_s=boottime_s() + ttl_s)
        service.registry.write(record)
    except VenusError:
        if sandbox.state is State.RUNNING:
            await service.in_thread(lambda: launched.set_frozen(False))
        raise
    sandbox.record = record
    sandbox.apply(Event.PAUSED)
    service.arm_ttl(sandbox)
    sandbox.tell("paused")


class PausesAtExpiry:
    """Pauses sandboxes at the end of their time to live; paused, they have the longest that there
    is."""

    def __init__(self, service: SandboxService) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, sandbox: LiveSandbox) -> None:
        """It has expired."""
        task = asyncio.ensure_future(self._pause(sandbox))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pause(self, sandbox: LiveSandbox) -> None:
        expires_at = sandbox.expires_at()
        if expires_at is None or sandbox.state is not State.RUNNING:
            return  # it has all the time now, or is paused or gone
        if expires_at > time.time():
            # It was given more, or the timer was a fraction early.
            self._service.arm_ttl(sandbox)
            return
        try:
            await pause(self._service, sandbox, self._service.config.max_ttl_s)
        except VenusError as error:
            if sandbox.state is State.RUNNING:
                # Something kept it busy, as a transfer of a file.
                _LOG.warning("pause %s at its end: %s", sandbox.sandbox_id, error)
                asyncio.get_running_loop().call_later(_PAUSE_AGAIN_S, self.begin, sandbox)


async def resume_for_request(service: SandboxService, sandbox: LiveSandbox) -> None:
    """Resume a paused sandbox that is to be resumed by requests; others stay as they are."""
    record = sandbox.record
    if sandbox.state is not State.PAUSED or record is None or record.resume_ttl_s is None:
        return
    try:
        await resume(service, sandbox)
    except (Conflict, SandboxGone):
        return  # another request was faster, or its end
    service.set_ttl(sandbox, record.resume_ttl_s)


async def resume(service: SandboxService, sandbox: LiveSandbox) -> None:
    """Returns when it runs again; `Conflict` if it is not paused."""
    _require_paused(sandbox)
    async with sandbox.gate.closed(lambda: False, sandbox.sandbox_id):
        await asyncio.shield(asyncio.ensure_future(_resume(service, sandbox)))


async def _resume(service: SandboxService, sandbox: LiveSandbox) -> None:
    launched = _require_paused(sandbox)
    assert sandbox.record is not None
    record = dataclasses.replace(sandbox.record, paused=False)
    service.registry.write(record)
    sandbox.record = record
    await service.in_thread(lambda: launched.set_frozen(False))
    if sandbox.link is None and sandbox.state is State.PAUSED:
        # An earlier daemon paused it; only now init can say what runs.
        try:
            link = await service.connect(sandbox, launched)
            await take_over_execs(sandbox, link)
        except (VenusError, LinkClosed):
            service.init_died(sandbox)
            raise sandbox.gone_error(_RESUME) from None
    _require_paused(sandbox)
    sandbox.apply(Event.RESUMED)
    if sandbox.link is None or sandbox.link.closed:
        service.init_died(sandbox)
        raise sandbox.gone_error(_RESUME)
    sandbox.tell("resumed")


def _require_paused(sandbox: LiveSandbox) -> LaunchedSandbox:
    launched = sandbox.require_live(_RESUME)
    if sandbox.state is not State.PAUSED:
        raise Conflict("it is not paused", operation=_RESUME, object=sandbox.sandbox_id)
    return launched
