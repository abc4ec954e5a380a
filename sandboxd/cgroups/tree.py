"""The version 2 groups of sandboxes: `<parent>/<id>/init` and `<parent>/<id>/exec-<n>`.

All processes are in these leaves; where `<parent>/<id>` has limits, they hold for all leaves
together, which have no controllers of their own. With `cgroup.kill` a command's whole tree is
killed by one write (Linux 5.14).
"""

from __future__ import annotations

import contextlib
import errno
import os

from sandboxd.cgroups import files
from sandboxd.cgroups.groups import ExecCgroup
from sandboxd.cgroups.waiting import (
    EMPTY_TIMEOUT_S,
    FREEZE_TIMEOUT_S,
    remove_when_empty,
    wait_event,
)
from sandboxd.errors import InternalError

_EXEC = "exec-"


class GroupTree:
    """Ids are checked path components."""

    def __init__(self, parent: str) -> None:
        self._parent = parent

    def group(self, sandbox_id: str) -> str:
        """The one of a whole sandbox."""
        return f"{self._parent}/{sandbox_id}"

    def create(self, sandbox_id: str) -> None:
        """The group of the sandbox and that of its init."""
        files.make_group(self.group(sandbox_id))
        files.make_group(f"{self.group(sandbox_id)}/init")

    def open_init_procs(self, sandbox_id: str) -> int:
        return files.open_for_writing(f"{self.group(sandbox_id)}/init/cgroup.procs")

    def open_exec(self, sandbox_id: str, exec_id: int) -> ExecCgroup:
        group = self._exec_group(sandbox_id, exec_id)
        files.make_group(group)
        opened = ExecCgroup([], None)
        try:
            opened.procs_fds.append(files.open_for_writing(f"{group}/cgroup.procs"))
            # Linux before 5.14 has no such file.
            with contextlib.suppress(FileNotFoundError):
                opened.kill_fd = files.open_for_writing(f"{group}/cgroup.kill")
        except BaseException:
            opened.close()
            os.rmdir(group)
            raise
        return opened

    def remove_exec(self, sandbox_id: str, exec_id: int) -> bool:
        """False while a process is left in it."""
        try:
            os.rmdir(self._exec_group(sandbox_id, exec_id))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    def exec_ids(self, sandbox_id: str) -> list[int]:
        names = (entry.name for entry in os.scandir(self.group(sandbox_id)))
        return [int(name[len(_EXEC) :]) for name in names if name.startswith(_EXEC)]

    def _exec_group(self, sandbox_id: str, exec_id: int) -> str:
        return f"{self.group(sandbox_id)}/{_EXEC}{exec_id:d}"

    def pids(self, sandbox_id: str) -> set[int]:
        """All processes of the sandbox."""
        return {pid for leaf in self._leaves(sandbox_id) for pid in files.pids(leaf)}

    def cpu_s(self, sandbox_id: str) -> float:
        """Also where no cpu controller is."""
        return files.read_field(f"{self.group(sandbox_id)}/cpu.stat", "usage_usec") / 1e6

    def set_frozen(self, sandbox_id: str, frozen: bool) -> None:
        """Stop or continue all processes; returns once they are stopped."""
        group = self.group(sandbox_id)
        files.write(f"{group}/cgroup.freeze", int(frozen))
        if not wait_event(group, f"frozen {frozen:d}", FREEZE_TIMEOUT_S):
            raise InternalError(
                "the processes could not be stopped",
                operation="freeze",
                object=sandbox_id,
                cause=f"still not `frozen {frozen:d}` after {FREEZE_TIMEOUT_S} s",
            )

    def kill(self, sandbox_id: str) -> None:
        """SIGKILL to all, also to frozen ones. Without `cgroup.kill` it does nothing."""
        with contextlib.suppress(FileNotFoundError):
            files.write(f"{self.group(sandbox_id)}/cgroup.kill", 1)

    def remove(self, sandbox_id: str) -> None:
        """Wait until all are dead, then remove the groups; no error if there are none."""
        group = self.group(sandbox_id)
        if not wait_event(group, "populated 0", EMPTY_TIMEOUT_S):
            raise InternalError(
                "processes survive SIGKILL",
                operation="destroy groups",
                object=group,
                cause=f"still populated after {EMPTY_TIMEOUT_S} s",
            )
        for leaf in self._leaves(sandbox_id):
            remove_when_empty(leaf)
        remove_when_empty(group)

    def _leaves(self, sandbox_id: str) -> list[str]:
        try:
            return [each.path for each in os.scandir(self.group(sandbox_id)) if each.is_dir()]
        except FileNotFoundError:
            return []
