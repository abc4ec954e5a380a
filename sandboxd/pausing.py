"""Pausing a sandbox: all its processes stand still, init too, until it is resumed.

A paused sandbox keeps its memory and its place, and its time to live goes on. What needs it to run
answers `Conflict`. The state file says that it is paused, so that a daemon that starts later leaves
it so: it has no word with its init before it is resumed.

The start gate is closed meanwhile: nothing is half started in it, and nothing captures it.
"""

from __future__ import annotations

import asyncio
import dataclasses

from sandboxd.errors import Conflict, VenusError
from sandboxd.inherited_execs import take_over_execs
from sandboxd.init_link import LinkClosed
from sandboxd.launch import LaunchedSandbox
from sandboxd.lifecycle import Event, State
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

_PAUSE = "pause sandbox"
_RESUME = "resume sandbox"


async def pause(service: SandboxService, sandbox: LiveSandbox) -> None:
    """Returns when nothing of it runs; `Conflict` if it is paused already."""
    sandbox.require_running(_PAUSE)
    async with sandbox.gate.closed(lambda: False, sandbox.sandbox_id):
        sandbox.require_running(_PAUSE)
        # Shielded: whoever asked may go away, but it stays neither here nor there.
        await asyncio.shield(asyncio.ensure_future(_pause(service, sandbox)))


async def _pause(service: SandboxService, sandbox: LiveSandbox) -> None:
    launched, _ = sandbox.require_running(_PAUSE)
    assert sandbox.record is not None
    try:
        await service.in_thread(lambda: launched.set_frozen(True))
        # It may have been destroyed meanwhile.
        sandbox.require_running(_PAUSE)
        record = dataclasses.replace(sandbox.record, paused=True)
        service.registry.write(record)
    except VenusError:
        if sandbox.state is State.RUNNING:
            await service.in_thread(lambda: launched.set_frozen(False))
        raise
    sandbox.record = record
    sandbox.apply(Event.PAUSED)
    sandbox.tell("paused")


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
