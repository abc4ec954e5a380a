"""Limits and accounts of sandboxes, on whatever cgroup hierarchies the machine has mounted.

`groups` says what the rest of the daemon may ask, `hierarchies` reads what is mounted, `hybrid` is
the backend for version 1 controllers with (or without) a version 2 hierarchy beside them, `unified`
the one for version 2 controllers; `choose_backend` decides. Of both, `parents` are the groups above
those of all sandboxes, and `tree` the version 2 groups of their processes.
"""

from __future__ import annotations

from sandboxd.cgroups import hybrid, unified
from sandboxd.cgroups.groups import CgroupBackend, CgroupLimits, ExecCgroup, GroupUsage
from sandboxd.cgroups.hierarchies import Hierarchies, read_hierarchies
from sandboxd.cgroups.hybrid import HybridBackend
from sandboxd.cgroups.unified import UnifiedBackend
from sandboxd.errors import Unsupported
from sandboxd.storage.mounts import current_mounts

__all__ = [
    "CgroupBackend",
    "CgroupLimits",
    "ExecCgroup",
    "GroupUsage",
    "choose_backend",
    "mounted_backend",
    "mounted_hierarchies",
]


def choose_backend(hierarchies: Hierarchies, parent: str) -> CgroupBackend:
    """The backend for what is mounted; `Unsupported` names what is missing."""
    missing_v1 = [name for name in hybrid.REQUIRED_CONTROLLERS if name not in hierarchies.v1]
    if not missing_v1:
        return HybridBackend(hierarchies, parent)
    causes = [f"no version 1 hierarchy for {', '.join(missing_v1)}"]
    if hierarchies.unified is not None:
        required = unified.REQUIRED_CONTROLLERS
        missing = [name for name in required if name not in hierarchies.controllers]
        if not missing:
            return UnifiedBackend(hierarchies.unified, parent)
        causes.append(f"the version 2 hierarchy has no controller {', '.join(missing)}")
    raise Unsupported(
        "sandboxes cannot be limited on this machine",
        operation="choose cgroups",
        object="/sys/fs/cgroup",
        cause="; ".join(causes),
    )


def mounted_hierarchies() -> Hierarchies:
    """Those of this machine."""
    return read_hierarchies(
        current_mounts(), lambda mount: (mount / "cgroup.controllers").read_text().split()
    )


def mounted_backend(parent: str) -> CgroupBackend:
    """The backend for this machine."""
    return choose_backend(mounted_hierarchies(), parent)
