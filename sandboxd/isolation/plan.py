"""The steps that build the inside of a sandbox, as data for sandbox-init. Pure.

Order matters in three places. Host device nodes are cloned while the host's tree is still visible.
The kernel lets a user namespace mount a fresh proc or sysfs only while it can see one, so the old
root is detached after those. And nothing inside the image is resolved before the pivot: from then
on every path and every symbolic link of the image ends inside the sandbox.
"""

from __future__ import annotations

import functools
import resource
from dataclasses import dataclass

from sandboxd.init_protocol import (
    AttachMount,
    BindReadOnly,
    CloneMount,
    DetachOldRoot,
    ExecPolicy,
    LoopbackUp,
    MakeDirectory,
    MaskPath,
    Mount,
    MountsPrivate,
    PivotRoot,
    Rlimit,
    SetHostname,
    SetupOp,
    Symlink,
    UnshareCgroup,
    WriteFile,
)
from sandboxd.isolation.capabilities import capability_mask
from sandboxd.isolation.seccomp import compile_filter

MIB = 1 << 20
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NOEXEC = 2, 8
STICKY_WORLD = 0o1777

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

# The lists of Docker's default container: what tells about the host, and what steers it.
MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

# What runc sets for a container with its own network: ping and low ports without a capability.
NETWORK_SYSCTLS = {
    "/proc/sys/net/ipv4/ping_group_range": b"0 65535",
    "/proc/sys/net/ipv4/ip_unprivileged_port_start": b"0",
}

DEV_SIZE_BYTES, DEV_INODES = 64 << 10, 1024
GENERATION_DIR = "/run/venus"
RUN_SIZE_BYTES, RUN_INODES = 64 * MIB, 65536
PSEUDO_TERMINALS = 256
# An empty file on a tmpfs costs about a KiB of the sandbox's own memory: this bounds the count
# before memory does, so that the answer is ENOSPC and not an out-of-memory kill.
BYTES_PER_TMPFS_INODE = 4096
# The kernel prefers a command over init when the sandbox is out of memory, and a sandbox over the
# daemon when the node is.
COMMAND_OOM_SCORE_ADJ = 500
DEFAULT_OPEN_FILES = 1024
MAX_OPEN_FILES = 1 << 20


# What is the same in every plan is made once: plans are made on the way of every create.
_DEVICE_CLONES = tuple(CloneMount(f"/dev/{name}", slot) for slot, name in enumerate(DEVICES))
_RESTRICTIONS: tuple[SetupOp, ...] = (
    *(WriteFile(path, data) for path, data in NETWORK_SYSCTLS.items()),
    *(MaskPath(path) for path in MASKED_PATHS),
    *(BindReadOnly(path) for path in READ_ONLY_PATHS),
    BindReadOnly(GENERATION_DIR, optional=False),
)


@dataclass(frozen=True)
class IsolationSpec:
    """What differs between sandboxes."""

    sandbox_id: str
    hostname: str
    memory_bytes: int
    generation: str = ""
    open_files: int = DEFAULT_OPEN_FILES
    """Hard limit of open descriptors; the daemon's own, which cannot be exceeded."""


def setup_ops(spec: IsolationSpec) -> list[SetupOp]:
    """Everything between the exec of init and READY."""
    return [
        UnshareCgroup(),
        MountsPrivate(),
        *_DEVICE_CLONES,
        PivotRoot(),
        *_kernel_filesystems(),
        DetachOldRoot(),
        *_devices(),
        *_memory_filesystems(spec.memory_bytes),
        *_generation(spec.generation),
        SetHostname(spec.hostname),
        LoopbackUp(),
        *_names(spec.hostname),
        *_RESTRICTIONS,
    ]


def exec_policy(spec: IsolationSpec) -> ExecPolicy:
    """What every command of the sandbox gets."""
    open_files = min(spec.open_files, MAX_OPEN_FILES)
    return ExecPolicy(
        sandbox_id=spec.sandbox_id,
        capability_mask=capability_mask(),
        seccomp_filter=compile_filter(),
        rlimits=(
            Rlimit(resource.RLIMIT_NOFILE, min(DEFAULT_OPEN_FILES, open_files), open_files),
            # A core would go wherever the *host's* core_pattern says. A program of the host that
            # takes cores is started in spite of a limit of 0, but not with one of 1.
            Rlimit(resource.RLIMIT_CORE, 1, 1),
        ),
        oom_score_adj=COMMAND_OOM_SCORE_ADJ,
    )


@functools.cache
def _kernel_filesystems() -> tuple[SetupOp, ...]:
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    return (
        MakeDirectory("/proc", 0o555),
        Mount("proc", "/proc", flags),
        MakeDirectory("/sys", 0o555),
        Mount("sysfs", "/sys", flags | MS_RDONLY),
    )


@functools.cache
def _devices() -> tuple[SetupOp, ...]:
    # The tmpfs itself has nodev: the nodes are mounts of the host's own, so that nothing that a
    # sandbox may write there can become a device.
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    ops: list[SetupOp] = [
        MakeDirectory("/dev"),
        Mount("tmpfs", "/dev", flags, _tmpfs(DEV_SIZE_BYTES, DEV_INODES, 0o755)),
    ]
    for slot, name in enumerate(DEVICES):
        ops.append(WriteFile(f"/dev/{name}", b"", 0o666))
        ops.append(AttachMount(slot, f"/dev/{name}", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC))
    ops += [Symlink(target, f"/dev/{name}") for name, target in DEVICE_LINKS.items()]
    return (
        *ops,
        MakeDirectory("/dev/pts"),
        Mount(
            "devpts",
            "/dev/pts",
            MS_NOSUID | MS_NOEXEC,
            f"newinstance,ptmxmode=0666,mode=0620,gid=5,max={PSEUDO_TERMINALS}",
        ),
        MakeDirectory("/dev/mqueue", STICKY_WORLD),
        Mount("mqueue", "/dev/mqueue", flags),
    )


def _memory_filesystems(memory_bytes: int) -> list[SetupOp]:
    # Their pages are charged to the sandbox's memory; half of it each, so that a full /tmp is
    # ENOSPC rather than an out-of-memory kill.
    size = memory_bytes // 2
    half = _tmpfs(size, max(1024, size // BYTES_PER_TMPFS_INODE), STICKY_WORLD)
    flags = MS_NOSUID | MS_NODEV
    return [
        MakeDirectory("/dev/shm", STICKY_WORLD),
        Mount("tmpfs", "/dev/shm", flags | MS_NOEXEC, half),
        MakeDirectory("/tmp", STICKY_WORLD),
        Mount("tmpfs", "/tmp", flags, half),
        MakeDirectory("/run"),
        Mount("tmpfs", "/run", flags, _tmpfs(min(RUN_SIZE_BYTES, size), RUN_INODES, 0o755)),
        MakeDirectory("/run/lock", STICKY_WORLD),
    ]


def _generation(generation: str) -> list[SetupOp]:
    """Which sandbox this is, for programs that must know that they were forked.

    In a filesystem of its own, sealed at the end: not even the sandbox's root changes it, and a
    snapshot, which takes what is written to memory, does not carry it into a fork.
    """
    return [
        MakeDirectory(GENERATION_DIR),
        Mount("tmpfs", GENERATION_DIR, MS_NOSUID | MS_NODEV | MS_NOEXEC, _tmpfs(4096, 8, 0o755)),
        WriteFile(f"{GENERATION_DIR}/generation", f"{generation}\n".encode(), 0o444),
    ]


def _tmpfs(size_bytes: int, inodes: int, mode: int) -> str:
    return f"size={size_bytes},nr_inodes={inodes},mode={mode:o}"


def _names(hostname: str) -> list[SetupOp]:
    """The sandbox's own name, for tools that read files instead of asking the kernel."""
    hosts = f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    return [
        MakeDirectory("/etc"),
        WriteFile("/etc/hostname", f"{hostname}\n".encode()),
        WriteFile("/etc/hosts", hosts.encode()),
    ]
