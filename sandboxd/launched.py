"""A sandbox that runs: its init, its groups, what it uses."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxd.cgroups import CgroupBackend, ExecCgroup
from sandboxd.errors import InternalError
from sandboxd.storage import Collection, VolumeStore

DEATH_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Usage:
    """What a sandbox uses, as accounted by the kernel. Not the memory that only it holds: page
    cache is charged to whoever read a file first."""

    memory_bytes: int
    memory_peak_bytes: int
    private_bytes: int
    """What only it holds; the page cache and the pages of its template left out."""
    cpu_s: float
    pids: int
    """Processes and threads, without init."""
    disk_bytes: int | None
    """As of a few seconds ago; None where the storage does not count."""
    oom_kills: int
    """How often the kernel killed a process of it for want of memory."""


class LaunchedSandbox:
    """Owns the pidfd of init. Every method may be called from any thread."""

    def __init__(
        self,
        sandbox_id: str,
        init_pid: int,
        init_pidfd: int,
        control_path: Path,
        cgroups: CgroupBackend,
        volumes: VolumeStore,
        layers: Sequence[str] = (),
    ) -> None:
        self.sandbox_id = sandbox_id
        self.init_pid = init_pid
        self.init_pidfd = init_pidfd
        self.control_path = control_path
        self.layers = tuple(layers)
        """The frozen layers that it stands on, the topmost first."""
        self._cgroups = cgroups
        self._volumes = volumes
        self.left_groups: deque[int] = deque()
        """Commands that ended while processes of theirs lived on, in their groups."""

    def open_exec_cgroup(self, exec_id: int) -> ExecCgroup:
        """The group for one command; the caller closes it."""
        return self._cgroups.open_exec(self.sandbox_id, exec_id)

    def remove_exec_cgroup(self, exec_id: int) -> bool:
        """False while processes of the command are left; the group then goes later.

        Each call looks at two that were left earlier, so that no more of them stay than have
        processes, which are limited.
        """
        removed = self._cgroups.remove_exec(self.sandbox_id, exec_id)
        for _ in range(min(2, len(self.left_groups))):
            earlier = self.left_groups.popleft()
            if not self._cgroups.remove_exec(self.sandbox_id, earlier):
                self.left_groups.append(earlier)
        if not removed:
            self.left_groups.append(exec_id)
        return removed

    def usage(self) -> Usage:
        """`FileNotFoundError` if the sandbox is gone."""
        groups = self._cgroups.usage(self.sandbox_id)
        return Usage(
            memory_bytes=groups.memory_bytes,
            memory_peak_bytes=groups.memory_peak_bytes,
            private_bytes=groups.private_bytes,
            cpu_s=groups.cpu_s,
            pids=groups.pids,
            disk_bytes=self._volumes.used_bytes(Collection.UPPERS, self.sandbox_id),
            oom_kills=groups.oom_kills,
        )

    def oom_kills(self) -> int:
        """The counter of `usage` alone: one small file."""
        return self._cgroups.oom_kills(self.sandbox_id)

    def set_frozen(self, frozen: bool) -> None:
        """Stop or continue all processes, init included."""
        self._cgroups.set_frozen(self.sandbox_id, frozen)

    def begin_kill(self) -> None:
        """SIGKILL to init, and by its death to every process of the sandbox. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.init_pidfd, signal.SIGKILL)
        # A frozen process dies when it is thawed, not before.
        with contextlib.suppress(OSError, InternalError):
            self._cgroups.set_frozen(self.sandbox_id, False)

    def kill(self) -> None:
        """`begin_kill`, and wait until all are gone.

        The kernel lets init die only after the rest of its pid namespace, so waiting for init is
        waiting for all. Idempotent.
        """
        self.begin_kill()
        poll = select.poll()
        poll.register(self.init_pidfd, select.POLLIN)
        if not poll.poll(DEATH_TIMEOUT_S * 1000):
            raise InternalError(
                "init survives SIGKILL",
                operation="kill sandbox",
                object=self.sandbox_id,
                cause=f"pid {self.init_pid} still there after {DEATH_TIMEOUT_S} s",
            )
        # After a restart init is the child of somebody else, who reaps it.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.init_pidfd, os.WEXITED | os.WNOHANG)

    def close(self) -> None:
        """Forget the process. Idempotent; nothing else may be called afterwards."""
        if self.init_pidfd >= 0:
            os.close(self.init_pidfd)
            self.init_pidfd = -1
