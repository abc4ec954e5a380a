"""Limits and accounts of sandboxes, on whatever cgroup hierarchies the machine has mounted.

`groups` says what the rest of the daemon may ask, `hierarchies` reads what is mounted, `hybrid` is
the backend for version 1 controllers with (or without) a version 2 hierarchy beside them. A backend
for version 2 controllers stands beside it behind the same interface; `choose_backend` decides.
"""

from __future__ import annotations

from sandboxd.cgroups.groups import CgroupBackend, CgroupLimits, ExecCgroup, GroupUsage
from sandboxd.cgroups.hierarchies import Hierarchies, read_hierarchies
from sandboxd.cgroups.hybrid import REQUIRED_CONTROLLERS, HybridBackend
from sandboxd.errors import Unsupported
from sandboxd.storage.mounts import current_mounts

__all__ = [
    "CgroupBackend",
    "CgroupLimits",
    "ExecCgroup",
    "GroupUsage",
    "choose_backend",
    "mounted_backend",
]


def choose_backend(hierarchies: Hierarchies, parent: str) -> CgroupBackend:
    """The backend for what is mounted; `Unsupported` names what is missing."""
    missing = [name for name in REQUIRED_CONTROLLERS if name not in hierarchies.v1]
    if not missing:
        return HybridBackend(hierarchies, parent)
    cause = f"no version 1 hierarchy for {', '.join(missing)}"
    if hierarchies.unified is not None:
        cause += "; limits on a version 2 hierarchy alone are not implemented yet"
    raise Unsupported(
        "sandboxes cannot be limited on this machine",
        operation="choose cgroups",
        object="/sys/fs/cgroup",
        cause=cause,
    )


def mounted_backend(parent: str) -> CgroupBackend:
    """The backend for this machine."""
    return choose_backend(read_hierarchies(current_mounts()), parent)
