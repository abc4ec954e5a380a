"""How much an image may hold, whoever made it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageBounds:
    """What an import takes at most; more is `TooLarge`, and nothing of it is left."""

    max_bytes: int = 64 << 30
    """Of the tars that it is made from, unpacked and together; of a directory, of its files."""
    max_entries: int = 10_000_000
    """Files, directories, links and whiteouts, of all layers together."""
    max_layers: int = 512
