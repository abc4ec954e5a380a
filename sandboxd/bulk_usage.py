"""What many sandboxes use, read together: for whoever looks at all of them again and again.

In pieces, so that a removal or a create that needs a thread, or the interpreter, need not wait for
all; and for one at a time, however many look.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.launched import LaunchedSandbox, Usage
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

_PIECE = 32


@dataclass(frozen=True)
class Reading:
    """What one used, at a moment of the node's monotonic clock, in seconds."""

    sandbox: LiveSandbox
    usage: Usage
    read_at_s: float


async def read_usages(service: SandboxService, sandboxes: Sequence[LiveSandbox]) -> list[Reading]:
    """In the order given; those that are gone, or go meanwhile, are left out."""
    found: list[Reading] = []
    async with service.bulk_reading:
        for begin in range(0, len(sandboxes), _PIECE):
            piece = [
                (each, each.launched)
                for each in sandboxes[begin : begin + _PIECE]
                if each.launched is not None
            ]
            found += await service.in_thread(lambda piece=piece: _read(piece))  # type: ignore[misc]
    return found


def _read(piece: Sequence[tuple[LiveSandbox, LaunchedSandbox]]) -> list[Reading]:
    found = []
    for sandbox, launched in piece:
        try:
            found.append(Reading(sandbox, launched.usage(), time.monotonic()))
        except OSError:
            continue  # its groups have gone
    return found
