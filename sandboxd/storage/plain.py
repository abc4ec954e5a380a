"""Volumes as plain directories: works on every filesystem, limits no disk."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxd.errors import Unsupported
from sandboxd.storage.tree_copy import copy_tree
from sandboxd.storage.tree_removal import remove_tree
from sandboxd.storage.volumes import (
    Collection,
    StorageConfig,
    checked_name,
    make_collections,
    storage_errors,
)


class PlainStore:
    """The fallback `VolumeStore`."""

    limits_disk = False
    overlay_options: tuple[tuple[str, str], ...] = ()

    def __init__(self, config: StorageConfig) -> None:
        self._root = config.storage_dir

    def open(self) -> None:
        with storage_errors("open storage", str(self._root)):
            self._root.mkdir(parents=True, exist_ok=True)
            make_collections(self._root)

    def close(self) -> None:
        """Nothing is held open."""

    def path(self, collection: Collection, name: str) -> Path:
        return self._root / collection.value / checked_name(name)

    def create(
        self, collection: Collection, name: str, disk_bytes: int | None, above: str | None = None
    ) -> Path:
        if disk_bytes is not None:
            raise Unsupported(
                "this node cannot limit a disk",
                operation="create volume",
                object=name,
                cause="storage is plain directories, without btrfs quotas",
            )
        path = self.path(collection, name)
        path.mkdir(mode=0o755)
        return path

    def rename(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        rename_volume(self.path(*source), self.path(*target))

    def flush(self, collection: Collection, name: str) -> None:
        """A copy reads from the page cache."""

    def freeze(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        path = self.path(*target)
        with storage_errors("freeze volume", source[1]):
            path.mkdir(mode=0o755)
            try:
                copy_tree(self.path(*source) / "upper", path / "upper")
            except BaseException:
                self.remove(*target)
                raise

    def derive(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        self.freeze(source, target)

    def settle(self, collection: Collection, name: str) -> None:
        """Nothing marks it."""

    def remove(self, collection: Collection, name: str) -> None:
        path = self.path(collection, name)
        with storage_errors("remove volume", str(path)):
            parent_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                remove_tree(parent_fd, path.name)
            finally:
                os.close(parent_fd)

    def used_bytes(self, collection: Collection, name: str) -> int | None:
        """Nobody counts: a walk would take as long as the sandbox chose to make it."""
        return None

    def names(self, collection: Collection) -> set[str]:
        return set(os.listdir(self._root / collection.value))


def rename_volume(source: Path, target: Path) -> None:
    """rename(2) that never replaces, not even an empty directory."""
    # Callers serialise creation of one name; this check is the message, not the guard.
    if target.exists():
        raise FileExistsError(str(target))
    os.rename(source, target)
