"""Where images and the sandboxes' upper directories lie on the host's disk.

A *volume* is a directory that is made and removed as one thing and may carry a byte limit. Volumes
stand in collections: `uppers/<sandbox id>`, `images/<name>`, `incoming/<token>` (an image on its
way in). Files carry plain ids (0, 1000, …), so the tree is closed to everybody but root: it holds
set-user-id programs of other people's images.
"""

from __future__ import annotations

from sandboxd.storage.btrfs import BtrfsStore, btrfs_missing
from sandboxd.storage.plain import PlainStore
from sandboxd.storage.split import SplitStore
from sandboxd.storage.volumes import Collection, StorageConfig, VolumeStore

__all__ = [
    "BtrfsStore",
    "Collection",
    "PlainStore",
    "SplitStore",
    "StorageConfig",
    "VolumeStore",
    "choose_store",
]


def choose_store(config: StorageConfig) -> VolumeStore:
    """The store that the configuration names; `auto` takes btrfs wherever it can be had.

    An existing storage file decides as well: falling back to plain directories beside it would
    make every image disappear.
    """
    if config.storage_backend == "plain":
        return PlainStore(config)
    store = BtrfsStore(config)
    if config.storage_backend == "auto" and not store.file.exists() and btrfs_missing():
        return PlainStore(config)
    return SplitStore(BtrfsStore(config, config.state_dir / "library"), store)
