"""Faults of the machine: each is a clear error, harms nobody else, and leaves the machine clean.

The table in docs/operations.md names these tests, and those of other files.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Sandbox, VenusError
from sandboxd.errors import ExecFailed, ImageNotFound, LimitExceeded, StorageFull, Unsupported
from tests.support.confined_daemon import confined
from tests.support.daemon import DaemonProcess, serving
from tests.support.footprint import footprint
from tests.support.groups import groups_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def small(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon on plain directories, on a filesystem of its own."""
    place = tmp_path_factory.mktemp("small")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m,mode=755", "small", place], check=True)
    try:
        daemon = DaemonProcess(
            f"venus-s{os.getpid()}", place / "state", {"storage_backend": "plain"}
        )
        with serving(daemon, base_image_tar):
            yield daemon
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def unharmed(daemon: DaemonProcess) -> Iterator[Sandbox]:
    """Another sandbox, which works after the fault; and then all is as before."""
    with Sandbox.create(socket=daemon.socket) as sandbox:
        pass
    before = _what_is_left(daemon)
    with Sandbox.create(socket=daemon.socket) as sandbox:
        yield sandbox
        assert sandbox.commands.run("echo fine").stdout == "fine\n"
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.commands.run("true")
    assert _what_is_left(daemon) == before


def _what_is_left(daemon: DaemonProcess) -> dict[str, object]:
    # Connections of clients, and what an error still refers to, go in their own time.
    return {name: value for name, value in footprint(daemon).items() if name != "descriptors"}


def options(daemon: DaemonProcess, *changes: str) -> None:
    """Of the filesystem that the daemon's state lies on."""
    subprocess.run(
        ["mount", "-o", ",".join(("remount", *changes)), daemon.state_dir.parent], check=True
    )


def fill(path: Path, free_bytes: int) -> None:
    """Takes all but so much of the filesystem."""
    with path.open("wb") as file:
        space = os.statvfs(path)
        size = space.f_bavail * space.f_frsize - free_bytes
        os.posix_fallocate(file.fileno(), 0, size)


def test_the_disk_of_the_node_is_full(small: DaemonProcess) -> None:
    filler = small.state_dir.parent / "filler"
    with unharmed(small) as other:
        fill(filler, 0)
        try:
            with pytest.raises(StorageFull, match="ENOSPC"):
                other.files.write("/root/f", b"x" * MIB)
            with pytest.raises(StorageFull, match="ENOSPC"):
                for _ in range(1000):  # the last pages of directories
                    with Sandbox.create(socket=small.socket) as sandbox:
                        sandbox.files.write("/root/f", b"x" * MIB)
        finally:
            filler.unlink()


def test_the_inodes_of_the_node_are_used_up(small: DaemonProcess) -> None:
    with unharmed(small) as other:
        space = os.statvfs(small.state_dir)
        options(small, f"nr_inodes={space.f_files - space.f_ffree + 8}")
        made = []
        try:
            with pytest.raises(StorageFull, match="ENOSPC"):
                for _ in range(100):
                    made.append(Sandbox.create(socket=small.socket))
            with pytest.raises(StorageFull, match="ENOSPC"):
                for index in range(100):
                    other.files.write(f"/root/{index}", b"x")
        finally:
            options(small, "nr_inodes=1000000")
            for each in made:
                each.kill()
                each.close()


def test_a_disk_limit_that_cannot_be(small: DaemonProcess) -> None:
    with unharmed(small), pytest.raises(Unsupported, match="disk"):
        Sandbox.create(disk_bytes=100 * MIB, socket=small.socket)


@contextlib.contextmanager
def limited(file: Path, value: int) -> Iterator[None]:
    file.write_text(str(value))
    try:
        yield
    finally:
        file.write_text("max")


def test_there_is_no_room_for_another_process(daemon: DaemonProcess) -> None:
    """Neither for a command nor, in a fork, for what ran in the original."""
    current = groups_of("pids", daemon.cgroup_parent) / "pids.current"
    with Sandbox.create(socket=daemon.socket) as sandbox:
        first = sandbox.snapshot()  # from here on the daemon has a connection to the keeper
        first.remove()
        first.close()
    with unharmed(daemon) as other:
        template = other.snapshot()
        with limited(current.with_name("pids.max"), int(current.read_text())):
            with pytest.raises(ExecFailed, match="EAGAIN"):
                other.commands.run("true")
            with pytest.raises(VenusError, match="EAGAIN"):
                other.files.read("/etc/passwd")
            with pytest.raises(VenusError, match="EAGAIN"):
                template.fork()
        template.remove()
        template.close()


def test_there_is_no_room_for_another_group(daemon: DaemonProcess) -> None:
    file = groups_of("unified", daemon.cgroup_parent) / "cgroup.max.descendants"
    with unharmed(daemon) as other:
        there = sum(1 for each in file.parent.rglob("*") if each.is_dir())
        with limited(file, there):
            with pytest.raises(LimitExceeded, match="EAGAIN"):
                Sandbox.create(socket=daemon.socket)
            with pytest.raises(LimitExceeded):
                other.commands.run("true")


def test_there_is_no_room_for_another_namespace(base_image_tar: Path, tmp_path: Path) -> None:
    with confined(tmp_path, base_image_tar) as (daemon, namespace), unharmed(daemon) as other:
        template = other.snapshot()
        for kind in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
            with namespace.limited(kind, 0):
                with pytest.raises(LimitExceeded, match=r"user\.max_\*_namespaces"):
                    Sandbox.create(socket=daemon.socket)
                with pytest.raises(LimitExceeded, match=r"user\.max_\*_namespaces"):
                    template.fork()
                other.commands.run("true")
        template.fork()[0].kill()
        template.remove()
        template.close()


def test_the_directory_of_an_image_is_gone(small: DaemonProcess) -> None:
    images = small.state_dir / "storage" / "images"
    with unharmed(small) as other:
        (images / "base").rename(images.parent / "away")
        try:
            with pytest.raises(ImageNotFound, match="base"):
                Sandbox.create(socket=small.socket)
            # What stands on it has it open.
            other.commands.run("true")
        finally:
            (images.parent / "away").rename(images / "base")


def test_the_root_filesystem_of_an_image_is_gone(small: DaemonProcess) -> None:
    image = small.state_dir / "storage" / "images" / "base"
    root = next(each for each in image.iterdir() if each.is_dir())
    with unharmed(small):
        root.rename(image / "away")
        try:
            with pytest.raises(VenusError, match="import it again"):
                Sandbox.create(socket=small.socket)
        finally:
            (image / "away").rename(root)
