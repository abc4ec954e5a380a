"""Images on a filesystem of their own, beside the one of everything else.

To overlayfs the subvolumes of one btrfs are one filesystem, and it shows their files' numbers as
they are, though each numbers its files from 257 on: a new file of a sandbox would have the number
of one of its image. Of two filesystems overlayfs keeps the numbers apart, where it is told to.
(Layers lie on the filesystem of the uppers: see `inode_numbers`.)
"""

from __future__ import annotations

from pathlib import Path

from sandboxd.storage.volumes import Collection, VolumeStore

_OF_IMAGES = frozenset({Collection.IMAGES, Collection.INCOMING})


class SplitStore:
    """A `VolumeStore` made of two."""

    overlay_options = (("xino", "on"),)

    def __init__(self, images: VolumeStore, others: VolumeStore) -> None:
        self._images = images
        self._others = others

    def _store(self, collection: Collection) -> VolumeStore:
        return self._images if collection in _OF_IMAGES else self._others

    @property
    def limits_disk(self) -> bool:
        return self._others.limits_disk

    def open(self) -> None:
        self._images.open()
        self._others.open()

    def close(self) -> None:
        self._others.close()
        self._images.close()

    def path(self, collection: Collection, name: str) -> Path:
        return self._store(collection).path(collection, name)

    def create(
        self, collection: Collection, name: str, disk_bytes: int | None, above: str | None = None
    ) -> Path:
        return self._store(collection).create(collection, name, disk_bytes, above)

    def rename(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        self._store(source[0]).rename(source, target)

    def remove(self, collection: Collection, name: str) -> None:
        self._store(collection).remove(collection, name)

    def flush(self, collection: Collection, name: str) -> None:
        self._store(collection).flush(collection, name)

    def freeze(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        self._store(source[0]).freeze(source, target)

    def derive(self, source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        self._store(source[0]).derive(source, target)

    def settle(self, collection: Collection, name: str) -> None:
        self._store(collection).settle(collection, name)

    def used_bytes(self, collection: Collection, name: str) -> int | None:
        return self._store(collection).used_bytes(collection, name)

    def names(self, collection: Collection) -> set[str]:
        return self._store(collection).names(collection)
