"""Volumes as btrfs subvolumes in a sparse loop file, with quota limits.

Invariant: at most one loop device is ever attached to the storage file, and it disappears with the
last mount of it (autoclear), also when the daemon is killed.

If an operator has mounted a btrfs of their own on the storage directory, that one is used and
never unmounted. Emptied blocks go back to the host (`discard=async` punches holes in the file).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sandboxd.errors import InternalError, Unsupported
from sandboxd.storage import btrfs_calls, inode_numbers, loop_device, mounts
from sandboxd.storage.plain import rename_volume
from sandboxd.storage.tree_removal import remove_tree
from sandboxd.storage.volumes import (
    Collection,
    StorageConfig,
    checked_name,
    make_collections,
    storage_errors,
)

MINIMUM_SIZE_BYTES = 128 << 20
# A short commit interval bounds how stale `used_bytes` can be.
MOUNT_OPTIONS = "discard=async,commit=10"
MOUNT_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOATIME
DETACH_TIMEOUT_S = 5.0


def btrfs_missing() -> str | None:
    """Why this machine cannot make a btrfs storage file; None if it can."""
    if shutil.which("mkfs.btrfs", path=_tool_path()) is None:
        return "mkfs.btrfs is not installed (Debian package btrfs-progs)"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices (/dev/loop-control)"
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    if "btrfs" not in known and not Path("/sys/module/btrfs").exists():
        return "the kernel does not offer btrfs (try: modprobe btrfs)"
    return None


def _tool_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class BtrfsStore:
    """The `VolumeStore` with limits."""

    overlay_options: tuple[tuple[str, str], ...] = ()

    def __init__(self, config: StorageConfig, root: Path | None = None) -> None:
        self._root = root or config.storage_dir
        self._size_bytes = config.storage_size_bytes
        self.file = config.state_dir / f"{self._root.name}.btrfs"
        self._lock_file = config.state_dir / f"{self._root.name}.lock"
        self._quota: btrfs_calls.QuotaKind | None = None
        self._collection_fds: dict[Collection, int] = {}

    @property
    def limits_disk(self) -> bool:
        return self._quota is not None

    def open(self) -> None:
        if self._collection_fds:
            return
        with storage_errors("open storage", str(self._root)):
            self._root.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if not self._is_mounted():
                    self._mount()
            make_collections(self._root)
            root_fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._quota = btrfs_calls.enable_quota(root_fd)
                for collection in Collection:
                    self._collection_fds[collection] = os.open(
                        collection.value, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
                        dir_fd=root_fd,
                    )  # fmt: skip
            finally:
                os.close(root_fd)

    def close(self) -> None:
        for descriptor in self._collection_fds.values():
            os.close(descriptor)
        self._collection_fds.clear()
        if not self.file.exists():
            return
        with storage_errors("close storage", str(self._root)), self._locked():
            device = loop_device.find(self.file)
            if device is None:
                return
            mine = [mount for mount in mounts.mounts_at(self._root) if mount.source == str(device)]
            for _ in mine:
                mounts.unmount(self._root)
            self._wait_detached()

    def path(self, collection: Collection, name: str) -> Path:
        return self._root / collection.value / checked_name(name)

    def create(
        self, collection: Collection, name: str, disk_bytes: int | None, above: str | None = None
    ) -> Path:
        if disk_bytes is not None and self._quota is None:
            raise Unsupported(
                "this node cannot limit a disk",
                operation="create volume",
                object=name,
                cause="the kernel refuses btrfs quotas",
            )
        parent_fd = self._collection_fds[collection]
        with contextlib.ExitStack() as stack:
            layer_fd, skipped = None, 0
            if above is not None:
                layer_fd = stack.enter_context(self._opened(Collection.LAYERS, above))
                skipped = inode_numbers.skipped(layer_fd) or inode_numbers.MOST_SKIPPED + 1
            buries = layer_fd is not None and skipped > inode_numbers.MOST_SKIPPED
            if layer_fd is not None and buries:
                btrfs_calls.snapshot_subvolume(
                    parent_fd, checked_name(name), layer_fd, read_only=False
                )
            else:
                btrfs_calls.create_subvolume(parent_fd, checked_name(name))
            try:
                volume_fd = stack.enter_context(self._opened(collection, name))
                if buries:
                    inode_numbers.bury(volume_fd)
                else:
                    inode_numbers.skip(volume_fd, skipped)
                if disk_bytes is not None:
                    btrfs_calls.limit_subvolume(volume_fd, disk_bytes)
            except BaseException:
                btrfs_calls.delete_subvolume(parent_fd, name)
                raise
        return self._root / collection.value / name

    @contextlib.contextmanager
    def _opened(self, collection: Collection, name: str) -> Iterator[int]:
        descriptor = os.open(
            checked_name(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
            dir_fd=self._collection_fds[collection],
        )  # fmt: skip
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def rename(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        rename_volume(self.path(*source), self.path(*target))

    def flush(self, collection: Collection, name: str) -> None:
        with storage_errors("flush volume", name):
            mounts.sync_filesystem(self.path(collection, name))

    def freeze(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        with storage_errors("freeze volume", source[1]), self._opened(*source) as source_fd:
            inode_numbers.mark_top(source_fd)
            self._snapshot(source_fd, target, read_only=True)

    def derive(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        with storage_errors("derive volume", source[1]), self._opened(*source) as source_fd:
            self._snapshot(source_fd, target, read_only=False)

    def settle(self, collection: Collection, name: str) -> None:
        with storage_errors("settle volume", name), self._opened(collection, name) as volume_fd:
            inode_numbers.mark_top(volume_fd)

    def _snapshot(self, source_fd: int, target: tuple[Collection, str], *, read_only: bool) -> None:
        parent_fd, name = self._collection_fds[target[0]], checked_name(target[1])
        btrfs_calls.snapshot_subvolume(parent_fd, name, source_fd, read_only=read_only)

    def remove(self, collection: Collection, name: str) -> None:
        parent_fd = self._collection_fds[collection]
        with storage_errors("remove volume", f"{collection.value}/{checked_name(name)}"):
            try:
                volume_fd = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                    dir_fd=parent_fd,
                )  # fmt: skip
            except FileNotFoundError:
                return
            try:
                is_subvolume = btrfs_calls.is_subvolume(volume_fd)
            finally:
                os.close(volume_fd)
            if is_subvolume:
                with contextlib.suppress(FileNotFoundError):
                    btrfs_calls.delete_subvolume(parent_fd, name)
            else:
                remove_tree(parent_fd, name)

    def used_bytes(self, collection: Collection, name: str) -> int | None:
        if self._quota is None:
            return None
        with self._opened(collection, name) as volume_fd:
            return btrfs_calls.used_bytes(volume_fd)

    def names(self, collection: Collection) -> set[str]:
        # Not through the kept descriptor: of an open directory, btrfs lists only what was in it
        # when it was opened.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open(".", flags, dir_fd=self._collection_fds[collection])
        try:
            return set(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Serialise attach and detach of the storage file between processes."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _is_mounted(self) -> bool:
        present = mounts.mounts_at(self._root)
        if present and present[-1].filesystem != "btrfs":
            raise InternalError(
                "something else is mounted on the storage directory",
                operation="open storage",
                object=str(self._root),
                cause=f"{present[-1].filesystem} from {present[-1].source}",
            )
        return bool(present)

    def _mount(self) -> None:
        if not self.file.exists():
            self._make_file()
        with loop_device.attached(self.file) as device:
            mounts.mount(str(device), self._root, "btrfs", MOUNT_FLAGS, MOUNT_OPTIONS)

    def _make_file(self) -> None:
        missing = btrfs_missing()
        if missing is not None:
            raise Unsupported(
                "the storage file cannot be made",
                operation="create storage",
                object=str(self.file),
                cause=missing,
            )
        # Made under another name first: a killed mkfs must not leave a file that looks ready.
        unfinished = self.file.with_suffix(".unfinished")
        with open(unfinished, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            os.truncate(stream.fileno(), max(self._size_bytes, MINIMUM_SIZE_BYTES))
        # One copy of metadata: two copies in one file protect from nothing.
        result = subprocess.run(
            ["mkfs.btrfs", "--quiet", "--force", "--metadata", "single", str(unfinished)],
            env={**os.environ, "PATH": _tool_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            unfinished.unlink()
            raise InternalError(
                "mkfs.btrfs failed",
                operation="create storage",
                object=str(self.file),
                cause=result.stderr.strip()[-500:],
            )
        unfinished.rename(self.file)

    def _wait_detached(self) -> None:
        """Give the kernel time to let go of the file, so that a caller finds nothing left.

        The filesystem outlives its last visible mount while it frees what was deleted, and for as
        long as any sandbox, or a foreign mount namespace that was copied meanwhile, has it. The
        last of them clears the loop device; no event tells, so this looks again, and gives up.
        """
        deadline = time.monotonic() + DETACH_TIMEOUT_S
        pause_s = 0.002
        while loop_device.find(self.file) is not None and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)
