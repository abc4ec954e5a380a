"""The setup plan: what is in it, and the orders that safety depends on."""

from __future__ import annotations

import resource

import pytest

from sandboxd import init_protocol as protocol
from sandboxd.init_protocol import SetupOp
from sandboxd.isolation import plan
from sandboxd.isolation.capabilities import ALLOWED_CAPABILITIES, Capability, capability_mask
from sandboxd.isolation.plan import IsolationSpec, exec_policy, setup_ops

pytestmark = pytest.mark.unit

SPEC = IsolationSpec(
    sandbox_id="sb-1",
    hostname="worker",
    memory_bytes=1 << 30,
    open_files=20000,
)


def ops() -> list[SetupOp]:
    return setup_ops(SPEC)


def index_of(wanted: SetupOp) -> int:
    return ops().index(wanted)


def mounts() -> dict[str, protocol.Mount]:
    return {op.target: op for op in ops() if isinstance(op, protocol.Mount)}


def test_nothing_of_the_image_is_resolved_before_the_pivot() -> None:
    pivot = index_of(protocol.PivotRoot())
    before = ops()[:pivot]
    assert {type(op) for op in before} == {
        protocol.UnshareCgroup,
        protocol.MountsPrivate,
        protocol.CloneMount,
    }
    # Mounts must stop to propagate before the first one is made.
    assert before.index(protocol.MountsPrivate()) < min(
        before.index(op) for op in before if isinstance(op, protocol.CloneMount)
    )


def test_proc_and_sysfs_are_mounted_while_the_hosts_are_in_sight_and_nothing_else_is() -> None:
    pivot = index_of(protocol.PivotRoot())
    detach = index_of(protocol.DetachOldRoot())
    between = [op for op in ops()[pivot + 1 : detach] if isinstance(op, protocol.Mount)]
    assert [op.fstype for op in between] == ["proc", "sysfs"]
    assert all(ops().index(op) > detach for op in ops() if isinstance(op, protocol.WriteFile))


def test_every_mount_forbids_set_user_id_and_devices() -> None:
    for target, mount in mounts().items():
        assert mount.flags & plan.MS_NOSUID, target
        assert mount.flags & plan.MS_NODEV or target == "/dev/pts", target
    assert mounts()["/sys"].flags & plan.MS_RDONLY


def test_every_tmpfs_is_bounded_in_bytes_and_inodes() -> None:
    tmpfs = [mount for mount in mounts().values() if mount.fstype == "tmpfs"]
    assert {mount.target for mount in tmpfs} == {"/dev", "/dev/shm", "/tmp", "/run", "/run/venus"}
    for mount in tmpfs:
        options = dict(option.split("=") for option in mount.data.split(","))
        assert 0 < int(options["size"]) <= SPEC.memory_bytes // 2, mount.target
        assert int(options["nr_inodes"]) > 0, mount.target


def test_devices_are_the_minimal_set_each_with_its_own_clone() -> None:
    clones = {op.slot: op.path for op in ops() if isinstance(op, protocol.CloneMount)}
    attached = {op.slot: op.path for op in ops() if isinstance(op, protocol.AttachMount)}
    assert clones == attached
    assert set(clones.values()) == {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")
    }
    assert "newinstance" in mounts()["/dev/pts"].data


def test_masks_come_after_what_they_hide_and_sysctls_before_they_are_sealed() -> None:
    last_mount = max(index for index, op in enumerate(ops()) if isinstance(op, protocol.Mount))
    masks = [index for index, op in enumerate(ops()) if isinstance(op, protocol.MaskPath)]
    seals = [index for index, op in enumerate(ops()) if isinstance(op, protocol.BindReadOnly)]
    writes = [index for index, op in enumerate(ops()) if isinstance(op, protocol.WriteFile)]
    assert last_mount < min(masks) < max(masks) < min(seals)
    assert max(writes) < min(seals)
    masked = {op.path for op in ops() if isinstance(op, protocol.MaskPath)}
    assert {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"} <= masked
    sealed = {op.path for op in ops() if isinstance(op, protocol.BindReadOnly)}
    kernels = {"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"}
    assert sealed == kernels | {"/run/venus"}


def test_the_name_is_set_in_the_kernel_and_in_files() -> None:
    assert protocol.SetHostname("worker") in ops()
    hosts = next(
        op for op in ops() if isinstance(op, protocol.WriteFile) and op.path == "/etc/hosts"
    )
    assert b"127.0.0.1\tlocalhost worker\n" in hosts.data
    assert protocol.LoopbackUp() in ops()


def test_capabilities_have_no_power_over_the_system() -> None:
    assert {capability.name for capability in ALLOWED_CAPABILITIES if "SYS" in capability.name} == {
        "SYS_CHROOT"
    }
    assert Capability.MKNOD not in ALLOWED_CAPABILITIES
    assert Capability.NET_RAW not in ALLOWED_CAPABILITIES
    assert capability_mask(frozenset({Capability.CHOWN, Capability.SETFCAP})) == 1 | 1 << 31


def test_exec_policy() -> None:
    policy = exec_policy(SPEC)
    limits = {limit.resource: (limit.soft, limit.hard) for limit in policy.rlimits}
    assert limits[resource.RLIMIT_NOFILE] == (1024, 20000)
    assert limits[resource.RLIMIT_CORE] == (1, 1)
    assert policy.capability_mask == capability_mask()
    assert policy.seccomp_filter
    assert policy.oom_score_adj > 0
    protocol.encode_plan(ops(), policy)
