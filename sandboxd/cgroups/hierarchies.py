"""Which cgroup hierarchies are mounted, and where. Pure: mounts in, answer out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxd.storage.mounts import Mount


@dataclass(frozen=True)
class Hierarchies:
    """Mount points; controllers that share a hierarchy (`cpu,cpuacct`) have the same one."""

    v1: Mapping[str, Path]
    """Version 1 controller → mount point."""
    unified: Path | None
    """The version 2 hierarchy."""
    controllers: frozenset[str] = frozenset()
    """What it has of them: those that version 1 has left to it."""


def read_hierarchies(
    mounts: Iterable[Mount], controllers_of: Callable[[Path], Iterable[str]]
) -> Hierarchies:
    """The hierarchies among `mounts`; a later mount on the same place hides the earlier one.
    `controllers_of` tells those of a version 2 hierarchy."""
    v1: dict[str, Path] = {}
    unified: Path | None = None
    for mount in mounts:
        # A bind mount of a part of a hierarchy, as containers have it, is not the hierarchy.
        if mount.root != "/":
            continue
        if mount.filesystem == "cgroup2":
            unified = Path(mount.target)
        elif mount.filesystem == "cgroup":
            for option in mount.super_options:
                v1[option] = Path(mount.target)
    return Hierarchies(v1, unified, frozenset(controllers_of(unified) if unified else ()))
