"""How the kernel schedules the daemon's event loop."""

from __future__ import annotations

import ctypes
import struct

_SYS_SCHED_SETATTR, _SYS_SCHED_GETATTR = 314, 315
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SHORT_SLICE_NS = 100_000


def shorten_slice() -> None:
    """Let the calling thread run soon after it is woken, in turn for shorter stretches.

    Every request is a few wake-ups of work that takes some tens of microseconds; on a busy node
    waiting for the CPU costs more than all of it. Threads and processes made from here on inherit
    the slice; init gives commands the ordinary one back. Before Linux 6.12 this changes nothing,
    so failure is of no interest.
    """
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if libc.syscall(_SYS_SCHED_GETATTR, 0, buffer, _ATTRIBUTES.size, 0) != 0:
        return
    _, policy, flags, nice, priority, _, deadline, period = _ATTRIBUTES.unpack(buffer.raw)
    wanted = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, policy, flags, nice, priority, _SHORT_SLICE_NS, deadline, period
    )
    libc.syscall(_SYS_SCHED_SETATTR, 0, wanted, 0)
