"""Images: read-only root filesystems that sandboxes have as their lowest layer."""

from __future__ import annotations

from sandboxd.images.bounds import ImageBounds
from sandboxd.images.store import Image, ImageStore

__all__ = ["Image", "ImageBounds", "ImageStore"]
