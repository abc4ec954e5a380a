"""Carrying out what recovery decided, before the daemon serves its first request."""

from __future__ import annotations

import asyncio
import logging

from sandboxd.errors import VenusError
from sandboxd.init_link import LinkClosed
from sandboxd.recovery import Action, Decision, current_boot_id, decide, process_start_ticks
from sandboxd.sandbox import boottime_s
from sandboxd.service import SandboxService
from sandboxd.tracer import cut_captures

_LOG = logging.getLogger("sandboxd")
_AT_ONCE = 8


async def take_over(service: SandboxService) -> None:
    """Adopt or remove everything that an earlier daemon left."""
    service.leases.recover()
    records = service.registry.read_all()
    live_inits = {}
    for record in records.values():
        if record is not None and (ticks := process_start_ticks(record.init_pid)) is not None:
            live_inits[record.init_pid] = ticks
    decisions = decide(
        records=records,
        remnants=await service.remnants(),
        live_inits=live_inits,
        boot_id=current_boot_id(),
        now_boottime_s=boottime_s(),
        leases=service.leases.ids,
        cut_captures=await service.in_thread(lambda: cut_captures(service.config.sandboxes_dir)),
    )
    slots = asyncio.Semaphore(_AT_ONCE)

    async def carry_out(decision: Decision) -> None:
        async with slots:
            await _carry_out(service, decision)

    await asyncio.gather(*(carry_out(decision) for decision in decisions))


async def _carry_out(service: SandboxService, decision: Decision) -> None:
    reason = decision.reason
    if decision.action is Action.ADOPT and decision.record is not None:
        try:
            await service.adopt(decision.record)
        except (VenusError, OSError, LinkClosed) as error:
            reason = f"it could not be adopted: {error}"
        else:
            _LOG.info("adopted %s: %s", decision.sandbox_id, reason)
            return
    try:
        await service.remove_remnant(decision.sandbox_id)
    except (VenusError, OSError) as error:
        # The daemon still serves the others; the next start tries again.
        _LOG.error("could not remove %s (%s): %s", decision.sandbox_id, reason, error)
    else:
        _LOG.info("removed %s: %s", decision.sandbox_id, reason)
