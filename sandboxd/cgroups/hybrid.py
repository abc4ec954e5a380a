"""Version 1 controllers, with a version 2 hierarchy beside them where one is mounted.

Each used controller has `<mount>/<parent>/<sandbox id>`. The version 2 hierarchy has no controllers
on such a machine, but it can kill a group by one write, which version 1 cannot: there the sandbox
has a `tree`.

All processes of a sandbox are descendants of init, so they inherit its version 1 groups; nothing in
a sandbox can see the files here, let alone write to them.

Does not handle: processes that an administrator moved out of the groups by hand.
"""

from __future__ import annotations

import contextlib
import os
import signal

from sandboxd.cgroups import files
from sandboxd.cgroups.groups import CgroupLimits, ExecCgroup, GroupUsage
from sandboxd.cgroups.hierarchies import Hierarchies
from sandboxd.cgroups.parents import ParentGroups
from sandboxd.cgroups.tree import GroupTree
from sandboxd.cgroups.waiting import EMPTY_TIMEOUT_S, FREEZE_TIMEOUT_S, patiently, remove_when_empty
from sandboxd.errors import InternalError

REQUIRED_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
# What one process beside the group weighs. The sandboxes together get that for every CPU: the
# default of one share would let a single busy process of the host outweigh hundreds of them.
SHARES_PER_CPU = 1024
SOCKET_BUFFER_SHARE = 4
# null, zero, full, random, urandom, tty, ptmx and pseudo-terminals: what /dev of a sandbox has.
ALLOWED_DEVICES = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*")


class HybridBackend:
    """A `CgroupBackend`."""

    def __init__(self, hierarchies: Hierarchies, parent: str) -> None:
        # As text: these paths are joined some thirty times for each sandbox and each command.
        self._controllers = {
            name: f"{hierarchies.v1[name]}/{parent}" for name in (*REQUIRED_CONTROLLERS, "devices")
            if name in hierarchies.v1
        }  # fmt: skip
        unified = hierarchies.unified
        self._tree = GroupTree(f"{unified}/{parent}") if unified is not None else None
        if unified is None and "cpuacct" in hierarchies.v1:
            self._controllers["cpuacct"] = f"{hierarchies.v1['cpuacct']}/{parent}"
        # One directory per hierarchy: controllers that are mounted together share theirs.
        self._v1_parents = list(dict.fromkeys(self._controllers.values()))
        tree_parents = [f"{unified}/{parent}"] if unified is not None else []
        self._parents = ParentGroups(
            list(dict.fromkeys([self._controllers["pids"], *self._v1_parents, *tree_parents])),
            unified or hierarchies.v1["pids"],
        )

    def prepare(self) -> None:
        self._parents.prepare()
        files.write(
            f"{self._controllers['cpu']}/cpu.shares", SHARES_PER_CPU * (os.cpu_count() or 1)
        )
        devices = self._controllers.get("devices")
        if devices is not None and not next(os.walk(devices))[1]:
            # Sandboxes' groups inherit it. Belt and braces: a user namespace can make no nodes.
            files.write(f"{devices}/devices.deny", "a")
            for device in ALLOWED_DEVICES:
                files.write(f"{devices}/devices.allow", f"c {device} rwm")

    def close(self) -> None:
        self._parents.close()

    def create(self, sandbox_id: str, limits: CgroupLimits) -> None:
        for parent in self._v1_parents:
            files.make_group(f"{parent}/{sandbox_id}")
        memory = f"{self._controllers['memory']}/{sandbox_id}"
        files.write(f"{memory}/memory.limit_in_bytes", limits.memory_bytes)
        try:
            # Memory and swap together, set to the same: no swap. Must not be set first.
            files.write(f"{memory}/memory.memsw.limit_in_bytes", limits.memory_bytes)
        except FileNotFoundError:  # the kernel does not account for swap
            files.write(f"{memory}/memory.swappiness", 0)
        # Buffers of network sockets are not in the memory limit, and without a limit of their own
        # not accounted at all. (Those of Unix sockets are in the memory limit.)
        with contextlib.suppress(FileNotFoundError):
            files.write(
                f"{memory}/memory.kmem.tcp.limit_in_bytes",
                limits.memory_bytes // SOCKET_BUFFER_SHARE,
            )
        # The limit is the user's: init does not count.
        files.write(f"{self._controllers['pids']}/{sandbox_id}/pids.max", limits.pids + 1)
        cpu = f"{self._controllers['cpu']}/{sandbox_id}"
        files.write(f"{cpu}/cpu.cfs_quota_us", limits.cpu_quota_us)
        if self._tree is not None:
            self._tree.create(sandbox_id)

    def open_init_procs(self, sandbox_id: str) -> list[int]:
        descriptors: list[int] = []
        try:
            for parent in self._v1_parents:
                procs = f"{parent}/{sandbox_id}/cgroup.procs"
                descriptors.append(files.open_for_writing(procs))
            if self._tree is not None:
                descriptors.append(self._tree.open_init_procs(sandbox_id))
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return descriptors

    def open_exec(self, sandbox_id: str, exec_id: int) -> ExecCgroup:
        if self._tree is None:
            return ExecCgroup([], None)
        return self._tree.open_exec(sandbox_id, exec_id)

    def remove_exec(self, sandbox_id: str, exec_id: int) -> bool:
        return self._tree is None or self._tree.remove_exec(sandbox_id, exec_id)

    def exec_ids(self, sandbox_id: str) -> list[int]:
        return [] if self._tree is None else self._tree.exec_ids(sandbox_id)

    def contains(self, sandbox_id: str, pid: int) -> bool:
        return pid in files.pids(f"{self._controllers['pids']}/{sandbox_id}")

    def usage(self, sandbox_id: str) -> GroupUsage:
        memory = f"{self._controllers['memory']}/{sandbox_id}"
        return GroupUsage(
            memory_bytes=files.read_number(f"{memory}/memory.usage_in_bytes"),
            memory_peak_bytes=files.read_number(f"{memory}/memory.max_usage_in_bytes"),
            private_bytes=_private_bytes(memory),
            cpu_s=self._cpu_s(sandbox_id),
            pids=max(
                0, files.read_number(f"{self._controllers['pids']}/{sandbox_id}/pids.current") - 1
            ),
            oom_kills=self.oom_kills(sandbox_id),
        )

    def private_bytes(self) -> int:
        return _private_bytes(self._controllers["memory"])

    def oom_kills(self, sandbox_id: str) -> int:
        return files.read_field(
            f"{self._controllers['memory']}/{sandbox_id}/memory.oom_control", "oom_kill"
        )

    def _cpu_s(self, sandbox_id: str) -> float:
        if self._tree is not None:
            return self._tree.cpu_s(sandbox_id)
        if "cpuacct" in self._controllers:
            return (
                files.read_number(f"{self._controllers['cpuacct']}/{sandbox_id}/cpuacct.usage")
                / 1e9
            )
        return 0.0

    def set_frozen(self, sandbox_id: str, frozen: bool) -> None:
        state_file = f"{self._controllers['freezer']}/{sandbox_id}/freezer.state"
        wanted = "FROZEN" if frozen else "THAWED"
        files.write(state_file, wanted)
        # FREEZING lasts until every process has come out of the kernel; reading pushes it on.
        for _ in patiently(FREEZE_TIMEOUT_S):
            if files.read(state_file).strip() == wanted:
                return
        raise InternalError(
            "the processes could not be stopped",
            operation="freeze",
            object=sandbox_id,
            cause=f"still {files.read(state_file).strip()} after {FREEZE_TIMEOUT_S} s",
        )

    def destroy(self, sandbox_id: str) -> None:
        # A frozen process of version 1 does not die before it is thawed.
        with contextlib.suppress(FileNotFoundError):
            files.write(f"{self._controllers['freezer']}/{sandbox_id}/freezer.state", "THAWED")
        self._kill_all(sandbox_id)
        if self._tree is not None:
            self._tree.remove(sandbox_id)
        for parent in self._v1_parents:
            remove_when_empty(f"{parent}/{sandbox_id}")

    def _kill_all(self, sandbox_id: str) -> None:
        if self._tree is not None:
            self._tree.kill(sandbox_id)
        group = f"{self._controllers['pids']}/{sandbox_id}"
        for _ in patiently(EMPTY_TIMEOUT_S):
            pids = files.pids(group)
            if not pids:
                return
            for pid in pids:
                _kill_member(pid, group)
        raise InternalError(
            "processes survive SIGKILL",
            operation="destroy groups",
            object=sandbox_id,
            cause=f"pids {sorted(files.pids(group))[:10]} after {EMPTY_TIMEOUT_S} s",
        )

    def names(self) -> set[str]:
        return self._parents.names()


def _private_bytes(memory: str) -> int:
    # What is charged to the group and those below it: of a sandbox's, there are none.
    fields = files.read_fields(f"{memory}/memory.stat")
    counted = fields["total_rss"] + fields["total_shmem"]
    # A kernel may be built, or started, without accounting for its own memory. Buffers of network
    # sockets are not in it.
    for kind in ("kmem", "kmem.tcp"):
        with contextlib.suppress(FileNotFoundError):
            counted += files.read_number(f"{memory}/memory.{kind}.usage_in_bytes")
    return counted


def _kill_member(pid: int, group: str) -> None:
    """SIGKILL to a process of the group, and to no other one that got its pid meanwhile."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid in files.pids(group):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
