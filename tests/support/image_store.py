"""A store of images in plain directories, without a daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxd.images import ImageBounds, ImageSources, ImageStore, PullBounds, Puller
from sandboxd.storage import Collection, PlainStore


@dataclass(frozen=True)
class Settings:
    state_dir: Path
    storage_backend: Literal["auto", "btrfs", "plain"] = "plain"
    storage_size_bytes: int = 1 << 30

    @property
    def storage_dir(self) -> Path:
        return self.state_dir / "storage"


def root_of(images: ImageStore, name: str) -> Path:
    root = images.acquire(name)
    images.release(name)
    return root


def assert_nothing_left(images: ImageStore, volumes: PlainStore) -> None:
    assert images.list() == []
    assert volumes.names(Collection.INCOMING) == set()
    assert volumes.names(Collection.IMAGES) == set()


def store_of(volumes: PlainStore, bounds: ImageBounds | None = None) -> ImageStore:
    """A store that pulls nothing."""
    bounds = bounds or ImageBounds()
    puller = Puller(Path("/nonexistent"), 65534, PullBounds(bounds.max_bytes, 1.0))
    return ImageStore(volumes, ImageSources(bounds, puller))
