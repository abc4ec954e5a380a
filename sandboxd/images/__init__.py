"""Images: read-only root filesystems that sandboxes have as their lowest layer."""

from __future__ import annotations

from sandboxd.images.bounds import ImageBounds
from sandboxd.images.pull import PullBounds, Puller
from sandboxd.images.sources import ImageSources
from sandboxd.images.store import Image, ImageStore

__all__ = ["Image", "ImageBounds", "ImageSources", "ImageStore", "PullBounds", "Puller"]
