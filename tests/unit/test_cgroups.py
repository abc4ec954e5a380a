"""Which backend fits what is mounted, and the outcomes of a descriptor pair."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.cgroups import CgroupLimits, ExecCgroup, choose_backend, unified
from sandboxd.cgroups.hierarchies import Hierarchies, read_hierarchies
from sandboxd.cgroups.hybrid import REQUIRED_CONTROLLERS, HybridBackend
from sandboxd.cgroups.unified import UnifiedBackend
from sandboxd.errors import Unsupported
from sandboxd.storage.mounts import parse_mountinfo

pytestmark = pytest.mark.unit

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
VERSION_2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
PART_OF_ONE = "50 27 0:32 /docker/x /inner/memory rw - cgroup cgroup rw,memory\n"


def controllers_of(mount: Path) -> list[str]:
    return {
        "/sys/fs/cgroup/unified": ["hugetlb"],
        "/sys/fs/cgroup": ["cpuset", "cpu", "io", "memory", "pids"],
    }[str(mount)]


def test_hybrid_layout() -> None:
    found = read_hierarchies(parse_mountinfo(HYBRID + PART_OF_ONE), controllers_of)
    assert found.v1["cpu"] == found.v1["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert found.v1["memory"] == Path("/sys/fs/cgroup/memory")
    assert found.unified == Path("/sys/fs/cgroup/unified")
    assert isinstance(choose_backend(found, "venus"), HybridBackend)


def test_version_2_alone() -> None:
    found = read_hierarchies(parse_mountinfo(VERSION_2), controllers_of)
    assert found.v1 == {}
    assert found.unified == Path("/sys/fs/cgroup")
    assert isinstance(choose_backend(found, "venus"), UnifiedBackend)


@pytest.mark.parametrize("missing", unified.REQUIRED_CONTROLLERS)
def test_a_missing_controller_of_version_2_is_named(missing: str) -> None:
    controllers = frozenset(unified.REQUIRED_CONTROLLERS) - {missing}
    with pytest.raises(Unsupported, match=rf"no version 1 .*no controller {missing}$"):
        choose_backend(Hierarchies({}, Path("/x"), controllers), "venus")


def test_a_group_of_another_owner_is_not_made_in_its_place(tmp_path: Path) -> None:
    backend = UnifiedBackend(tmp_path, "venus.slice/venus-sandboxes.service/sandboxes")
    with pytest.raises(Unsupported, match=r"sandboxes\.service.*started|starting"):
        backend.prepare()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cores", "quota_us"), [(1.0, 100_000), (0.25, 25_000), (2.5, 250_000), (0.0001, 1_000)]
)
def test_cores_as_quota(cores: float, quota_us: int) -> None:
    assert CgroupLimits(1, 1, cores).cpu_quota_us == quota_us


@pytest.mark.parametrize("missing", REQUIRED_CONTROLLERS)
def test_a_missing_controller_is_named(missing: str) -> None:
    controllers = {name: Path("/x") for name in REQUIRED_CONTROLLERS if name != missing}
    with pytest.raises(Unsupported, match=missing):
        choose_backend(Hierarchies(controllers, None), "venus")


def test_descriptors_of_an_exec_group_are_closed_once() -> None:
    first, second = os.pipe()
    group = ExecCgroup([first], second)
    group.close()
    group.close()
    for descriptor in (first, second):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_without_a_unified_hierarchy_commands_have_no_group(tmp_path: Path) -> None:
    backend = HybridBackend(Hierarchies(dict.fromkeys(REQUIRED_CONTROLLERS, tmp_path), None), "v")
    group = backend.open_exec("sandbox", 1)
    assert (group.procs_fds, group.kill_fd) == ([], None)
    assert backend.remove_exec("sandbox", 1)
