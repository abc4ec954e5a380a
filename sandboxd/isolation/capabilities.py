"""The capabilities that a command in a sandbox may hold, over its own user namespace only.

Docker's default set, less what makes no sense here: MKNOD (a user namespace cannot make device
nodes), NET_RAW (forged packets, as soon as sandboxes get a network), AUDIT_WRITE (the audit log
belongs to the host). No CAP_SYS_* but SYS_CHROOT.
"""

from __future__ import annotations

import enum


class Capability(enum.IntEnum):
    """Bit numbers of <linux/capability.h>; only those that anything here names."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    FOWNER = 3
    FSETID = 4
    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    NET_BIND_SERVICE = 10
    NET_RAW = 13
    SYS_CHROOT = 18
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    MKNOD = 27
    AUDIT_WRITE = 29
    SETFCAP = 31


ALLOWED_CAPABILITIES = frozenset(
    {
        Capability.CHOWN,
        Capability.DAC_OVERRIDE,
        Capability.FOWNER,
        Capability.FSETID,
        Capability.KILL,
        Capability.SETGID,
        Capability.SETUID,
        Capability.SETPCAP,
        Capability.NET_BIND_SERVICE,
        Capability.SYS_CHROOT,
        Capability.SETFCAP,
    }
)


def capability_mask(capabilities: frozenset[Capability] = ALLOWED_CAPABILITIES) -> int:
    """The set as the 64-bit mask that the kernel and init use."""
    return sum(1 << capability for capability in capabilities)
