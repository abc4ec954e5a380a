"""A fork that tries every way to write, at memory and files that others hold, too.

Afterwards its original, its siblings and a new fork of the template are as they were, and so are
the files of the page pool and the layer, byte for byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxd.client import Sandbox, Template
from tests.support.daemon import DaemonProcess
from tests.support.footprint import keeper_of

SOURCES = Path(__file__).parent / "programs"
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
SWAP_BYTES = 512 << 20
EPERM, EBADF, EACCES, EINVAL, ENOSYS, ENOTTY, EXDEV, ETXTBSY, EFAULT = (
    1, 9, 13, 22, 38, 25, 18, 26, 14,
)  # fmt: skip
# What must not go through, and how it is refused.
REFUSED = {
    "map_files": {EPERM},
    "mremap_duplicate": {EINVAL},
    "remap_file_pages": {EINVAL},
    "madvise_remove": {EINVAL},
    "madvise_remove_read_only": {EINVAL},
    "madvise_hwpoison": {EPERM, EINVAL},
    "madvise_soft_offline": {EPERM, EINVAL},
    "init_mem": {EACCES},
    "init_vm_writev": {EPERM},
    "init_ptrace": {EPERM},
    "read_read_only": {EFAULT},
    "direct_read_read_only": {EFAULT},
    "vmsplice": {EPERM},
    "io_setup": {ENOSYS},
    "io_uring_setup": {EPERM},
    "userfaultfd": {EPERM},
    "process_madvise": {EPERM},
    "bpf": {EPERM},
    "memfd_secret": {ENOSYS},
    "lower_mmap_shared_write": {EACCES},
    "lower_mprotect": {EACCES},
    "lower_write": {EBADF},
    "lower_ftruncate": {EINVAL},
    "lower_fallocate": {EBADF},
    "lower_madvise_remove": {EACCES},
    "lower_write_after": {EBADF},
    "file_overlay_xattr": {EPERM},
    "exe_write": {ETXTBSY},
    "name_to_handle": {EPERM},
    "open_by_handle": {EPERM},
    "init_root": {EACCES},
    "tmpfile_link_over": {17},
}
# What has to have gone through, for the test to show anything.
DONE = {
    "store", "proc_self_mem", "proc_self_mem_read_only", "proc_pid_mem", "proc_pid_mem_read_only",
    "process_vm_writev", "ptrace_attach", "ptrace_poke", "ptrace_poke_read_only", "child_store",
    "madvise_dontneed", "madvise_free", "madvise_wipeonfork", "mremap_grow", "mprotect_read_only",
    "shmat_remap", "read", "readv", "recv", "recvmsg", "recvfrom", "read_pipe", "write_behind",
    "direct_read", "direct_read_back", "futex_wake_op", "futex_lock_pi", "sigaltstack",
    "clone_tids", "getrandom", "mprotect", "file_write", "file_truncate", "file_chmod",
    "file_link_write", "file_rename", "file_exchange", "file_unlink", "file_setxattr",
    "lower_reopen_write", "own_mmap_shared", "own_punch", "own_madvise_remove", "clone_write",
    "tmpfile_link", "exe_unlink", "exe_replace", "tmpfs_write", "image_write",
}  # fmt: skip


@dataclass
class Fortress:
    """The original, its template, and the command in both."""

    original: Sandbox
    template: Template
    exec_id: int

    def ask(self, sandbox: Sandbox, command: str) -> str:
        """What the program in a fork answers."""
        known = sandbox.commands.output(self.exec_id)
        sandbox.commands.send_stdin(self.exec_id, f"{command}\n".encode())
        deadline = time.monotonic() + 60
        while True:
            said = sandbox.commands.output(self.exec_id).removeprefix(known)
            if said.endswith(b"\n"):
                return said.decode().strip()
            assert time.monotonic() < deadline, f"no answer to {command}: {said!r}"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fortress") / "fortress"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static"]
    subprocess.run(["gcc", *flags, *sorted(SOURCES.glob("*.c")), "-o", path], check=True)
    return path


@contextlib.contextmanager
def made_fortress(daemon: DaemonProcess, program: Path) -> Iterator[Fortress]:
    with Sandbox.create(socket=daemon.socket) as original:
        original.files.write("/root/fortress.bin", program.read_bytes(), mode=0o755)
        handle = original.commands.run(["/root/fortress.bin"], True, stdin=True)
        assert next(iter(handle)).data == b"ready\n"
        template = original.snapshot()
        original.handle = handle  # type: ignore[attr-defined]
        try:
            yield Fortress(original, template, handle.exec_id)
        finally:
            template.remove()


@pytest.fixture
def fortress(daemon: DaemonProcess, program: Path) -> Iterator[Fortress]:
    with made_fortress(daemon, program) as fortress:
        yield fortress


def held_elsewhere(daemon: DaemonProcess, fortress: Fortress) -> dict[str, str]:
    """Digests of everything that the forks of the template share, by name."""
    found = {}
    keeper = keeper_of(daemon)
    try:
        with keeper.take(fortress.template.template_id) as taken:
            for number, descriptor in enumerate(taken.descriptors):
                size = os.fstat(descriptor)
                digest = hashlib.sha256()
                for at in range(0, size.st_size, 1 << 20):
                    digest.update(os.pread(descriptor, 1 << 20, at))
                # A hole that is read would stay allocated, for ever and for all.
                found[f"pool file {number}"] = f"{digest.hexdigest()} {size.st_blocks}"
    finally:
        keeper.close()
    for layer in (daemon.state_dir / "storage" / "layers").iterdir():
        archive = subprocess.run(
            ["tar", "-c", "--xattrs", "--xattrs-include=*", "--sort=name", "-C", layer, "upper"],
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        found[f"layer {layer.name}"] = hashlib.sha256(archive.stdout).hexdigest()
    image = daemon.state_dir / "library" / "images" / "base" / "rootfs"
    for name in ("etc/passwd", "bin/sh", "usr/bin/perl"):
        found[name] = hashlib.sha256((image / name).read_bytes()).hexdigest()
    return found


def outcomes(attacker: Sandbox) -> dict[str, tuple[int, int]]:
    lines = attacker.files.read("/tmp/report").splitlines()
    return {name: (int(result), int(errno)) for name, result, errno in map(str.split, lines)}


def check_outcomes(attacker: Sandbox) -> None:
    seen = outcomes(attacker)
    for name, errors in REFUSED.items():
        result, errno = seen[name]
        assert result < 0 and errno in errors, f"{name}: {result}, errno {errno}"
    assert not [name for name in DONE if seen[name][0] < 0], seen
    assert seen["descriptors_of_the_pool"] == (0, 0)


def check_others(fortress: Fortress, siblings: list[Sandbox]) -> None:
    fortress.original.handle.send_stdin("check\n")  # type: ignore[attr-defined]
    said = next(iter(fortress.original.handle)).data.decode()  # type: ignore[attr-defined]
    assert said.startswith("checked whole"), said
    [fresh] = fortress.template.fork()
    with fresh:
        for each in (*siblings, fresh):
            said = fortress.ask(each, "check")
            assert said.startswith("checked whole"), said


@contextlib.contextmanager
def forks(fortress: Fortress, count: int, **options: int) -> Iterator[list[Sandbox]]:
    made = fortress.template.fork(count, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        for each in made:
            each.kill()


def test_nothing_that_a_fork_does_reaches_another(
    daemon: DaemonProcess, fortress: Fortress
) -> None:
    before = held_elsewhere(daemon, fortress)
    with forks(fortress, 3) as (attacker, second, sibling):
        assert fortress.ask(attacker, "attack") == "attacked"
        check_outcomes(attacker)
        assert fortress.ask(second, "attack") == "attacked"
        check_others(fortress, [sibling])
        # A snapshot of what is left of it is a template of its own.
        attacker.fork()[0].kill()
        check_others(fortress, [])
    assert held_elsewhere(daemon, fortress) == before


def test_a_fork_that_runs_out_of_memory_meanwhile(
    daemon: DaemonProcess, fortress: Fortress
) -> None:
    before = held_elsewhere(daemon, fortress)
    with forks(fortress, 1) as [sibling]:
        with forks(fortress, 2, memory_bytes=24 << 20) as small:
            for each in small:
                each.commands.send_stdin(fortress.exec_id, b"attack\nall\n")
            deadline = time.monotonic() + 60
            while any(each.is_running() and not each.metrics().oom_kills for each in small):
                assert time.monotonic() < deadline, "48 MiB went into 24"
                time.sleep(0.02)
        check_others(fortress, [sibling])
    assert held_elsewhere(daemon, fortress) == before


@contextlib.contextmanager
def swap_in_memory() -> Iterator[None]:
    """Some swap, where the machine has none: pages of the pool can go there."""
    number = Path("/sys/class/zram-control/hot_add").read_text().strip()
    device, settings = f"/dev/zram{number}", Path(f"/sys/block/zram{number}")
    try:
        (settings / "disksize").write_text(str(SWAP_BYTES))
        subprocess.run(["mkswap", device], stdout=subprocess.DEVNULL, check=True)
        subprocess.run(["swapon", device], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", device], check=True)
    finally:
        (settings / "reset").write_text("1")
        Path("/sys/class/zram-control/hot_remove").write_text(number)


@contextlib.contextmanager
def own_group(daemon: DaemonProcess) -> Iterator[Path]:
    """The daemon in a memory group of its own, to which what it writes to the pool is charged."""
    [line] = [
        each for each in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in each
    ]
    home = MEMORY_GROUPS / line.split(":")[2].lstrip("/")
    group = MEMORY_GROUPS / f"venus-hostile-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(daemon.pid))
        yield group
    finally:
        (home / "cgroup.procs").write_text(str(daemon.pid))
        group.rmdir()


def press_out(group: Path) -> None:
    """Until its pages are in the swap. What was used a moment ago goes at a later try."""
    for _ in range(20):
        (group / "memory.force_empty").write_text("1")
        stat = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
        if int(stat["swap"]) > int(stat["shmem"]):
            return
    raise AssertionError(f"they stay in memory: {stat}")


@pytest.mark.skipif(
    not (MEMORY_GROUPS.exists() and Path("/sys/class/zram-control").exists()),
    reason="needs a version 1 memory group to press out of memory, and zram for swap",
)
def test_the_same_while_the_pool_is_in_the_swap(daemon: DaemonProcess, program: Path) -> None:
    with own_group(daemon) as group, made_fortress(daemon, program) as fortress:
        before = held_elsewhere(daemon, fortress)
        with swap_in_memory():
            press_out(group)
            with forks(fortress, 2) as (attacker, sibling):
                assert fortress.ask(attacker, "attack") == "attacked"
                check_outcomes(attacker)
                press_out(group)
                check_others(fortress, [sibling])
        assert held_elsewhere(daemon, fortress) == before
