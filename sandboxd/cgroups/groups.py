"""What the daemon asks of cgroups, whatever version is mounted.

Of one sandbox: a group that holds all its processes and carries the limits, in it a group for init
and one for each command, so that init can kill a command's whole tree with one write, also when
the daemon is dead.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

CPU_PERIOD_US = 100_000
"""The kernel's own, in both versions."""
_MINIMUM_QUOTA_US = 1_000


@dataclass(frozen=True)
class CgroupLimits:
    """Hard limits of one sandbox. Swap is never allowed on top of memory."""

    memory_bytes: int
    pids: int
    cpu_cores: float

    @property
    def cpu_quota_us(self) -> int:
        """In each `CPU_PERIOD_US`."""
        return max(_MINIMUM_QUOTA_US, round(self.cpu_cores * CPU_PERIOD_US))


@dataclass(frozen=True)
class GroupUsage:
    """Accounts of one sandbox."""

    memory_bytes: int
    memory_peak_bytes: int
    private_bytes: int
    """What only the sandbox holds: anonymous memory, memory files, and the kernel's own for it.
    Not the page cache, nor pages of a template, which are charged to whoever wrote them."""
    cpu_s: float
    pids: int
    oom_kills: int


@dataclass
class ExecCgroup:
    """Open descriptors of the group of one command; given to init, then closed here.

    A process that writes "0" to each of `procs_fds` joins; the right to do so is that of whoever
    opened them. Where the kernel cannot kill a group by one write, `kill_fd` is None, there is no
    group to join, and init walks the processes instead.
    """

    procs_fds: list[int]
    kill_fd: int | None

    def close(self) -> None:
        """Idempotent."""
        for descriptor in self.procs_fds:
            os.close(descriptor)
        self.procs_fds = []
        if self.kill_fd is not None:
            os.close(self.kill_fd)
            self.kill_fd = None


class CgroupBackend(Protocol):
    """Blocking; every method may be called from any thread. Ids are checked path components."""

    def prepare(self) -> None:
        """Make the common parent groups. Idempotent."""

    def close(self) -> None:
        """Remove the common parents, if no sandbox is left in them. Idempotent."""

    def create(self, sandbox_id: str, limits: CgroupLimits) -> None:
        """Make the groups of a sandbox with their limits, still without a process."""

    def open_init_procs(self, sandbox_id: str) -> list[int]:
        """Descriptors to which init's pid is written, before it runs any code of its own."""

    def open_exec(self, sandbox_id: str, exec_id: int) -> ExecCgroup:
        """Make and open the group of one command."""

    def remove_exec(self, sandbox_id: str, exec_id: int) -> bool:
        """Remove the group of a command; False while a process of it is left."""

    def exec_ids(self, sandbox_id: str) -> list[int]:
        """The commands that have a group, also those whose leader has ended."""

    def contains(self, sandbox_id: str, pid: int) -> bool:
        """Whether the process is one of the sandbox's."""

    def usage(self, sandbox_id: str) -> GroupUsage:
        """The accounts as they stand; `FileNotFoundError` if the sandbox has no groups."""

    def private_bytes(self) -> int:
        """`GroupUsage.private_bytes` of all sandboxes together, also of such as have just gone."""

    def oom_kills(self, sandbox_id: str) -> int:
        """How many processes of the sandbox the kernel killed for want of memory."""

    def set_frozen(self, sandbox_id: str, frozen: bool) -> None:
        """Stop or continue all processes; returns once they are stopped."""

    def destroy(self, sandbox_id: str) -> None:
        """Kill what is left, then remove all groups; no error if there are none."""

    def names(self) -> set[str]:
        """Ids that have a group in any hierarchy."""
