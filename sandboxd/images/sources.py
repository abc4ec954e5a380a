"""Where the tree of an image comes from: a tar stream, a directory, a Debian bootstrap, a registry.

Each writes below `rootfs` of a directory that goes when it fails, and leaves nothing else there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from sandboxd.errors import InternalError
from sandboxd.images import debian
from sandboxd.images.archive import find_image
from sandboxd.images.archive_files import ArchiveFiles
from sandboxd.images.bounds import ImageBounds
from sandboxd.images.documents import ImageDefaults
from sandboxd.images.host_directory import write_directory
from sandboxd.images.pull import Puller
from sandboxd.images.registry import OPERATION, PullWish
from sandboxd.images.streams import Allowance
from sandboxd.images.tar_archive import write_tar
from sandboxd.images.tree_writer import TreeWriter
from sandboxd.storage.tree_removal import remove_tree

ROOT = "rootfs"
PULLED = "registry "
"""How the source of a pulled image begins."""
_ARCHIVE = "archive"


@dataclass(frozen=True)
class Filled:
    """What was written."""

    source: str
    digest: str | None
    size_bytes: int
    entries: int
    defaults: ImageDefaults = field(default_factory=ImageDefaults)


class ImageSources:
    """Blocking; may be used by several threads."""

    def __init__(self, bounds: ImageBounds, puller: Puller) -> None:
        self._bounds = bounds
        self._puller = puller

    def stop(self) -> None:
        """What waits for other machines gives up."""
        self._puller.stop()

    def tar(self, place: Path, stream: BinaryIO, source: str) -> Filled:
        """Of a root filesystem or an archive; `source` says in words where the first is from."""
        with self._writer(place) as writer:
            digest = write_tar(stream, writer, Allowance(self._bounds.max_bytes))
            writer.finish()
        # What kind it is shows only when all of it is there: entries come in any order.
        archive = place / _ARCHIVE
        (place / ROOT).rename(archive)
        (place / ROOT).mkdir(mode=0o755)
        filled = self._archive(place, archive)
        if filled is not None:
            _remove(place, _ARCHIVE)
            return filled
        (place / ROOT).rmdir()
        archive.rename(place / ROOT)
        return Filled(source, digest, writer.size_bytes, writer.entries)

    def directory(self, place: Path, path: Path) -> Filled:
        """A root filesystem or an archive on the host."""
        if (filled := self._archive(place, path)) is not None:
            return filled
        with self._writer(place) as writer:
            write_directory(path, writer, Allowance(self._bounds.max_bytes))
            writer.finish()
        return Filled(f"directory {path}", None, writer.size_bytes, writer.entries)

    def debian(
        self,
        place: Path,
        suite: str | None,
        packages: Sequence[str] | None,
        on_line: Callable[[str], None],
    ) -> Filled:
        """A fresh Debian system."""
        suite = suite or debian.DEFAULT_SUITE
        wanted = debian.DEFAULT_PACKAGES if packages is None else tuple(packages)
        with debian.bootstrap(suite, wanted, on_line) as stream:
            return self.tar(place, stream, f"mmdebstrap {suite} {' '.join(wanted)}".strip())

    def registry(
        self,
        place: Path,
        wish: PullWish,
        on_line: Callable[[str], None],
        cancelled: threading.Event,
    ) -> Filled:
        """An image of a registry."""
        (place / _ARCHIVE).mkdir(mode=0o700)
        layout = self._puller.fetch(wish, place / _ARCHIVE, on_line, cancelled)
        filled = self._archive(place, layout)
        if filled is None:
            raise InternalError(
                "skopeo has left no layout", operation=OPERATION, object=wish.reference
            )
        _remove(place, _ARCHIVE)
        return replace(filled, source=f"{PULLED}{wish.reference}")

    def _archive(self, place: Path, directory: Path) -> Filled | None:
        with ArchiveFiles(directory) as files:
            image = find_image(files, self._bounds)
            if image is None:
                return None
            with self._writer(place, layered=True) as writer:
                image.write(writer, self._bounds.max_bytes)
        return Filled(image.kind, image.digest, writer.size_bytes, writer.entries, image.defaults)

    def _writer(self, place: Path, *, layered: bool = False) -> TreeWriter:
        return TreeWriter(place / ROOT, self._bounds.max_entries, layered=layered)


def _remove(directory: Path, name: str) -> None:
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(directory_fd, name)
    finally:
        os.close(directory_fd)
