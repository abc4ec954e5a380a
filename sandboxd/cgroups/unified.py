"""A version 2 hierarchy with all controllers, as systemd mounts it.

`<parent>/<id>` has the limits and accounts of a sandbox; its processes are in leaves below it
(`tree`), in which no controller is enabled. So no group has both processes and controllers, which
the kernel forbids, and joining the group of a command moves no charge.

The parent may lie in a group that somebody delegated (`Delegate=` of a systemd unit): controllers
are enabled from the root down to it, where they are not. The group above it must be there, and have
no processes of its own: one made here in the place of a unit's would lack what the unit sets.

Devices: version 2 has no such controller. A sandbox cannot make nodes in its user namespace, its
mounts but `/dev` are `nodev`, and `/dev` holds what the plan put there.

Does not handle: kernels before 5.19, which have no `memory.peak`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sandboxd.cgroups import files
from sandboxd.cgroups.groups import CPU_PERIOD_US, CgroupLimits, ExecCgroup, GroupUsage
from sandboxd.cgroups.parents import ParentGroups
from sandboxd.cgroups.tree import GroupTree
from sandboxd.errors import InternalError, Unsupported

REQUIRED_CONTROLLERS = ("cpu", "memory", "pids")
# What one process beside the group weighs. The sandboxes together get that for every CPU: the
# default would let a single busy process of the host outweigh hundreds of them.
WEIGHT_PER_CPU = 100
MAXIMUM_WEIGHT = 10_000
# Of memory.stat: what only the group holds. Not `file`, the page cache, which has `shmem` in it.
PRIVATE_FIELDS = ("anon", "shmem", "kernel", "sock")


class UnifiedBackend:
    """A `CgroupBackend`."""

    def __init__(self, hierarchy: Path, parent: str) -> None:
        self._hierarchy = hierarchy
        self._parent = f"{hierarchy}/{parent}"
        self._parents = ParentGroups([self._parent], hierarchy)
        self._tree = GroupTree(self._parent)

    def prepare(self) -> None:
        above = os.path.dirname(self._parent)
        if not os.path.isdir(above):
            raise Unsupported(
                "the group that is to have those of all sandboxes is missing",
                operation="prepare groups",
                object=above,
                cause="it is its owner's to make; of a systemd unit, by starting that",
            )
        self._parents.prepare()
        for group in reversed([self._parent, *map(str, Path(self._parent).parents)]):
            if Path(group).is_relative_to(self._hierarchy):
                _enable_controllers(group)
        weight = min(MAXIMUM_WEIGHT, WEIGHT_PER_CPU * (os.cpu_count() or 1))
        files.write(f"{self._parent}/cpu.weight", weight)

    def close(self) -> None:
        self._parents.close()

    def create(self, sandbox_id: str, limits: CgroupLimits) -> None:
        self._tree.create(sandbox_id)
        group = self._tree.group(sandbox_id)
        files.write(f"{group}/memory.max", limits.memory_bytes)
        with contextlib.suppress(FileNotFoundError):  # the kernel does not account for swap
            files.write(f"{group}/memory.swap.max", 0)
        # The limit is the user's: init does not count.
        files.write(f"{group}/pids.max", limits.pids + 1)
        files.write(f"{group}/cpu.max", f"{limits.cpu_quota_us} {CPU_PERIOD_US}")

    def open_init_procs(self, sandbox_id: str) -> list[int]:
        return [self._tree.open_init_procs(sandbox_id)]

    def open_exec(self, sandbox_id: str, exec_id: int) -> ExecCgroup:
        return self._tree.open_exec(sandbox_id, exec_id)

    def remove_exec(self, sandbox_id: str, exec_id: int) -> bool:
        return self._tree.remove_exec(sandbox_id, exec_id)

    def exec_ids(self, sandbox_id: str) -> list[int]:
        return self._tree.exec_ids(sandbox_id)

    def contains(self, sandbox_id: str, pid: int) -> bool:
        return pid in self._tree.pids(sandbox_id)

    def usage(self, sandbox_id: str) -> GroupUsage:
        group = self._tree.group(sandbox_id)
        return GroupUsage(
            memory_bytes=files.read_number(f"{group}/memory.current"),
            memory_peak_bytes=files.read_number(f"{group}/memory.peak"),
            private_bytes=_private_bytes(group),
            cpu_s=self._tree.cpu_s(sandbox_id),
            pids=max(0, files.read_number(f"{group}/pids.current") - 1),
            oom_kills=self.oom_kills(sandbox_id),
        )

    def private_bytes(self) -> int:
        return _private_bytes(self._parent)

    def oom_kills(self, sandbox_id: str) -> int:
        return files.read_field(f"{self._tree.group(sandbox_id)}/memory.events", "oom_kill")

    def set_frozen(self, sandbox_id: str, frozen: bool) -> None:
        self._tree.set_frozen(sandbox_id, frozen)

    def destroy(self, sandbox_id: str) -> None:
        self._tree.kill(sandbox_id)
        self._tree.remove(sandbox_id)

    def names(self) -> set[str]:
        return self._parents.names()


def _enable_controllers(group: str) -> None:
    """For the groups below it. Those that somebody enabled already are left alone."""
    enabled = files.read(f"{group}/cgroup.subtree_control").split()
    missing = [name for name in REQUIRED_CONTROLLERS if name not in enabled]
    if not missing:
        return
    try:
        files.write(f"{group}/cgroup.subtree_control", " ".join(f"+{name}" for name in missing))
    except InternalError as error:
        raise Unsupported(
            f"the controllers {', '.join(missing)} cannot be enabled",
            operation="prepare groups",
            object=group,
            cause=f"{error.cause}; EBUSY: it has processes of its own, ENOENT: they were not "
            "delegated to it. cgroup_parent must lie in a group that was delegated, or at the root",
        ) from error


def _private_bytes(group: str) -> int:
    # Of the group and those below it.
    fields = files.read_fields(f"{group}/memory.stat")
    return sum(fields[name] for name in PRIVATE_FIELDS)
