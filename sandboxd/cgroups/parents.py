"""The groups under which those of all sandboxes stand, one in each hierarchy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from sandboxd.cgroups import fast_join
from sandboxd.errors import Conflict


class ParentGroups:
    """Made, kept from other daemons, and tuned, as long as the daemon runs."""

    def __init__(self, paths: Sequence[str], tuned_hierarchy: Path) -> None:
        """The first of `paths` carries the lock."""
        self.paths = tuple(paths)
        self._tuned_hierarchy = tuned_hierarchy
        self._tuned = False
        self._lock_fd = -1

    def prepare(self) -> None:
        """`Conflict` when another daemon uses them. Idempotent."""
        # A parent that is there already was left by a killed daemon, and so was its tuning.
        killed_before = os.path.exists(self.paths[0])
        for path in self.paths:
            os.makedirs(path, exist_ok=True)
        self._lock()
        self._tune(killed_before)

    def _lock(self) -> None:
        """Keeps other daemons out, which would take these groups for a dead one's."""
        if self._lock_fd >= 0:
            return
        parent = self.paths[0]
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(
                "another daemon uses this group",
                operation="prepare groups",
                object=parent,
                cause="its lock is held; a second daemon needs a cgroup_parent of its own",
            ) from None
        self._lock_fd = descriptor

    def _tune(self, killed_before: bool) -> None:
        with contextlib.suppress(OSError):  # joins are slower on a kernel without the option
            if not fast_join.is_enabled(self._tuned_hierarchy):
                fast_join.enable(self._tuned_hierarchy)
                self._tuned = True
            self._tuned = self._tuned or killed_before

    def close(self) -> None:
        """Remove them, if no sandbox is left in them. Idempotent."""
        if self._tuned:
            fast_join.disable(self._tuned_hierarchy)
            self._tuned = False
        for path in self.paths:
            try:
                os.rmdir(path)
            except OSError as error:
                # Groups of sandboxes that live on are the next daemon's.
                if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
                    raise
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def names(self) -> set[str]:
        """Ids that have a group in any of them."""
        found: set[str] = set()
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(path) if entry.is_dir()}
        return found
