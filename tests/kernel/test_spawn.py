"""_native.spawn: what a new sandbox is, and what is left when it cannot be made."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import _native
from sandboxd import init_protocol as protocol
from tests.support.init_harness import ID_BASE, RawSandbox, default_ops

NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


layers = pytest.mark.parametrize(
    "layers_by", [None, _native.LayersBy.PATH], ids=["layers as the kernel has it", "by path"]
)


@pytest.fixture
def sandbox(rootfs: Path, tmp_path: Path) -> Iterator[RawSandbox]:
    with RawSandbox(rootfs, tmp_path / "sandbox") as sandbox:
        yield sandbox


def children() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in lists for pid in path.read_text().split()}


def test_every_namespace_is_new(sandbox: RawSandbox) -> None:
    for name in NAMESPACES:
        inside = os.readlink(f"/proc/{sandbox.pid}/ns/{name}")
        assert inside != os.readlink(f"/proc/self/ns/{name}"), name


def test_ids_are_mapped_to_the_given_range(sandbox: RawSandbox) -> None:
    for name in ("uid_map", "gid_map"):
        fields = Path(f"/proc/{sandbox.pid}/{name}").read_text().split()
        assert fields == ["0", str(ID_BASE), "65536"]


def test_files_carry_plain_ids_on_disk(sandbox: RawSandbox) -> None:
    done = sandbox.shell("touch /made-by-root && touch /made && chown 5:7 /made && stat -c %u /etc")
    assert (done.code, done.stdout) == (0, b"0\n")
    assert (sandbox.upper / "made-by-root").stat().st_uid == 0
    made = (sandbox.upper / "made").stat()
    assert (made.st_uid, made.st_gid) == (5, 7)


def test_the_image_stays_as_it_was(sandbox: RawSandbox, rootfs: Path) -> None:
    before = (rootfs / "etc/passwd").read_bytes()
    assert sandbox.shell("echo x:x:77:77::/: >> /etc/passwd; rm /etc/group").code == 0
    assert (rootfs / "etc/passwd").read_bytes() == before
    assert (rootfs / "etc/group").exists()


def test_the_root_is_nosuid_nodev_and_the_only_tree(sandbox: RawSandbox) -> None:
    mounts = sandbox.shell("cat /proc/mounts").stdout.decode().splitlines()
    root = next(line for line in mounts if line.split()[1] == "/")
    assert root.split()[2] == "overlay"
    assert {"nosuid", "nodev", "rw"} <= set(root.split()[3].split(","))
    assert not [line for line in mounts if line.startswith("/dev/")], "a host filesystem is visible"


@layers
def test_layers_are_those_given_and_nothing_else_is_mounted(
    rootfs: Path, tmp_path: Path, layers_by: _native.LayersBy | None
) -> None:
    top, middle = tmp_path / "top", tmp_path / "middle"
    for directory in (top, middle):
        (directory / "etc").mkdir(parents=True)
        (directory / "etc" / "which").write_text(directory.name)
    (middle / "etc" / "middle").write_text("there")
    before = Path("/proc/self/mountinfo").read_text()
    with RawSandbox(
        rootfs, tmp_path / "sandbox", layers=(top, middle), layers_by=layers_by
    ) as sandbox:
        script = (
            "cat /etc/which /etc/middle; test -e /etc/passwd && echo x >/etc/which; stat -c %u /etc"
        )
        assert sandbox.shell(script).stdout == b"topthere0\n"
        assert (top / "etc" / "which").read_text() == "top"
        assert (sandbox.upper / "etc" / "which").stat().st_uid == 0
        mounts = sandbox.shell("cat /proc/self/mountinfo").stdout.decode().splitlines()
        assert [line.split()[4] for line in mounts].count("/") == 1
        assert str(tmp_path) not in "".join(line.split(" - ")[0] for line in mounts)
        assert Path("/proc/self/mountinfo").read_text() == before, "a mount reached the host"


def test_the_kernel_is_asked_how_it_takes_layers() -> None:
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    expected = _native.LayersBy.DESCRIPTOR if release >= (6, 15) else _native.LayersBy.PATH
    assert _native.layers_by() == expected


def test_hostname_loopback_masks(sandbox: RawSandbox) -> None:
    script = (
        "hostname; cat /sys/class/net/lo/flags; cat /proc/keys; ls -A /sys/firmware;"
        "echo 1 > /proc/sys/kernel/domainname"
    )
    done = sandbox.shell(script)
    assert done.stdout.split() == [b"inside", b"0x9"]
    assert b"Read-only file system" in done.stderr


def test_init_holds_only_its_own_descriptors(sandbox: RawSandbox) -> None:
    sandbox.client.hello()
    targets = sorted(os.readlink(path) for path in Path(f"/proc/{sandbox.pid}/fd").iterdir())
    assert targets[:5] == ["/dev/null"] * 3 + ["/dev/pts", "anon_inode:[signalfd]"]
    assert len(targets) == 7, targets  # and the listener, and this test's connection
    assert all(target.startswith("socket:") for target in targets[5:])


def test_an_idle_init_is_small(sandbox: RawSandbox) -> None:
    sandbox.run("/bin/true")
    rollup = Path(f"/proc/{sandbox.pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    assert sizes["Rss"] < 200, rollup


def test_namespaces_end_with_init(rootfs: Path, tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    with RawSandbox(rootfs, tmp_path / "sandbox") as sandbox:
        sandbox.start("sleep", "1000")
        assert Path("/proc/self/mountinfo").read_text() == mounts, "a mount reached the host"
        pid = sandbox.pid
    assert not Path(f"/proc/{pid}").exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not sandbox.cgroup.exists()


def test_a_failing_operation_is_named_and_leaves_nothing(rootfs: Path, tmp_path: Path) -> None:
    ops = default_ops()
    ops.insert(4, protocol.Mount("no-such-filesystem", "/proc"))
    processes, descriptors = children(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(_native.NativeError) as caught:
        with RawSandbox(rootfs, tmp_path / "sandbox", ops=ops):
            pass
    assert caught.value.op_index == 4
    assert caught.value.errno == errno.ENODEV
    assert "operation 4" in caught.value.object
    assert children() == processes
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    "damage",
    [
        lambda plan: plan[:-8],
        lambda plan: plan + b"\0" * 8,
        lambda plan: b"\0" * 4 + plan[4:],
        lambda plan: plan[:12] + (10_000).to_bytes(4, "little") + plan[16:],
        lambda plan: b"",
    ],
    ids=["short", "long", "magic", "op count", "empty"],
)
def test_a_damaged_plan_is_refused(
    rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: object
) -> None:
    encode = protocol.encode_plan
    monkeypatch.setattr(protocol, "encode_plan", lambda *args: damage(encode(*args)))  # type: ignore[operator]
    with pytest.raises(_native.NativeError) as caught:
        with RawSandbox(rootfs, tmp_path / "sandbox"):
            pass
    assert caught.value.errno == errno.EINVAL
    assert caught.value.op_index is None


def test_a_lower_that_is_no_directory_fails_cleanly(tmp_path: Path) -> None:
    processes = children()
    with pytest.raises((_native.NativeError, NotADirectoryError)):
        with RawSandbox(Path("/proc/self/status"), tmp_path / "sandbox"):
            pass
    assert children() == processes


def test_spawn_refuses_an_id_range_with_the_hosts_root() -> None:
    with pytest.raises(_native.NativeError) as caught:
        _native.spawn(
            init_fd=0,
            plan_fd=0,
            listen_fd=0,
            root_mountpoint="/tmp",
            lower_fds=[0],
            upper_parent_fd=0,
            id_base=0,
        )
    assert caught.value.errno == errno.EINVAL


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    image, mountpoint = tmp_path / "image", tmp_path / "btrfs"
    mountpoint.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mountpoint)], check=True)
    yield mountpoint
    subprocess.run(["umount", str(mountpoint)], check=True)


def test_upper_on_btrfs(rootfs: Path, btrfs: Path) -> None:
    with RawSandbox(rootfs, btrfs / "sandbox") as sandbox:
        done = sandbox.shell(
            "echo text > /etc/new && chown 3:4 /etc/new && cat /etc/new && rm /etc/group &&"
            "rmdir /mnt && mkdir /mnt && mv /etc/hosts /mnt/"
        )
        assert (done.code, done.stdout) == (0, b"text\n"), done
        assert (sandbox.upper / "etc/new").stat().st_uid == 3
