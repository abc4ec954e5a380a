"""Groups as the kernel has them, whatever version is mounted."""

from __future__ import annotations

from pathlib import Path

from sandboxd.cgroups import mounted_hierarchies


def groups_of(controller: str, parent: str) -> Path:
    """The group `parent` in the hierarchy that has the controller; `unified` names version 2."""
    found = mounted_hierarchies()
    hierarchy = found.v1.get(controller, found.unified)
    assert hierarchy is not None, f"no hierarchy has {controller}"
    return hierarchy / parent


def is_frozen(parent: str, sandbox_id: str) -> bool:
    """Whether all processes of a sandbox stand still, as the kernel says."""
    group = groups_of("freezer", parent) / sandbox_id
    if (state := group / "freezer.state").exists():
        return state.read_text() == "FROZEN\n"
    return "frozen 1" in (group / "cgroup.events").read_text().splitlines()


def may_swap(parent: str, sandbox_id: str) -> bool:
    """Whether a sandbox may hold more memory than its limit by swapping."""
    group = groups_of("memory", parent) / sandbox_id
    if (maximum := group / "memory.swap.max").exists():
        return maximum.read_text() != "0\n"
    if (combined := group / "memory.memsw.limit_in_bytes").exists():
        return combined.read_text() != (group / "memory.limit_in_bytes").read_text()
    return (group / "memory.swappiness").read_text() != "0\n"
