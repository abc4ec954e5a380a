"""The images of a node.

An image is a volume `images/<name>` with `image.json` and `rootfs/`. It is written as a volume of
the collection `incoming`, flushed, then renamed: a name either has the whole image or none. Images
never change afterwards; a sandbox has them mounted as an overlay's lower layer.

Lock order: `_lock` is a leaf and guards only the two dictionaries; no file operation is done under
it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sandboxd.errors import Conflict, ImageNotFound, InvalidRequest
from sandboxd.images import debian
from sandboxd.images.archive import ArchivedImage, find_image
from sandboxd.images.archive_files import ArchiveFiles
from sandboxd.images.bounds import ImageBounds
from sandboxd.images.documents import ImageDefaults
from sandboxd.images.host_directory import write_directory
from sandboxd.images.streams import Allowance
from sandboxd.images.tar_archive import write_tar
from sandboxd.images.tree_writer import TreeWriter
from sandboxd.storage import Collection, VolumeStore
from sandboxd.storage.mounts import sync_filesystem
from sandboxd.storage.tree_removal import remove_tree
from sandboxd.storage.volumes import storage_errors

_ROOT = "rootfs"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Image:
    """What is known of one image."""

    name: str
    source: str
    digest: str | None
    """Of the stream that the image was made from, or of the configuration that an archive of images
    has; None for a copied directory."""
    size_bytes: int
    entries: int
    created_at: float
    defaults: ImageDefaults = field(default_factory=ImageDefaults)


@dataclass(frozen=True)
class _Filled:
    """What was written into `rootfs`."""

    source: str
    digest: str | None
    size_bytes: int
    entries: int
    defaults: ImageDefaults = field(default_factory=ImageDefaults)


class ImageStore:
    """Blocking; every method may be called from any thread once `open` has returned."""

    def __init__(self, volumes: VolumeStore, bounds: ImageBounds | None = None) -> None:
        self._volumes = volumes
        self._bounds = bounds or ImageBounds()
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._defaults: dict[str, ImageDefaults] = {}
        """Of images that are in use, so that a create need not read a file."""
        self._busy: set[str] = set()

    def open(self) -> None:
        """Remove what imports left that were cut off."""
        for token in self._volumes.names(Collection.INCOMING):
            self._volumes.remove(Collection.INCOMING, token)

    def get(self, name: str) -> Image:
        """Raises `ImageNotFound`."""
        path = self._path(name)
        try:
            return _decoded(json.loads((path / "image.json").read_text()))
        except FileNotFoundError:
            raise ImageNotFound(
                "there is no such image", operation="find image", object=name
            ) from None

    def list(self) -> list[Image]:
        """All images, by name."""
        found = []
        for name in sorted(self._volumes.names(Collection.IMAGES)):
            try:
                found.append(self.get(name))
            except ImageNotFound:  # removed meanwhile
                continue
        return found

    def acquire(self, name: str) -> Path:
        """Its root filesystem, which stays until `release`."""
        with self._lock:
            if name in self._busy:
                raise ImageNotFound(
                    "the image is being removed", operation="use image", object=name
                )
            self._users[name] += 1
            known = name in self._defaults
        try:
            root = self._path(name) / _ROOT
            if not known:
                defaults = self.get(name).defaults
                with self._lock:
                    self._defaults[name] = defaults
        except BaseException:
            self.release(name)
            raise
        return root

    def release(self, name: str) -> None:
        """Undo one `acquire`."""
        with self._lock:
            self._users[name] -= 1
            if self._users[name] <= 0:
                del self._users[name]

    def defaults(self, name: str) -> ImageDefaults:
        """Of an image that the caller has acquired."""
        with self._lock:
            return self._defaults[name]

    def remove(self, name: str) -> None:
        """Raises `Conflict` while a sandbox uses the image."""
        self.get(name)
        self._claim(name, "remove image")
        try:
            self._volumes.remove(Collection.IMAGES, name)
        finally:
            self._unclaim(name)

    def import_tar(self, name: str, stream: BinaryIO) -> Image:
        """From a tar of a root filesystem, of an OCI layout, or of `docker save`; plain, gzip or
        zstd."""
        return self._import(name, lambda incoming: self._fill_from_tar(incoming, stream, "tar"))

    def import_directory(self, name: str, path: Path) -> Image:
        """From a directory of the host: a root filesystem, or an OCI layout."""

        def fill(incoming: Path) -> _Filled:
            if (filled := self._fill_from_archive(incoming, path)) is not None:
                return filled
            with self._writer(incoming) as writer:
                write_directory(path, writer, Allowance(self._bounds.max_bytes))
                writer.finish()
            return _Filled(f"directory {path}", None, writer.size_bytes, writer.entries)

        return self._import(name, fill)

    def build_base(
        self,
        name: str,
        suite: str | None,
        packages: Sequence[str] | None,
        on_line: Callable[[str], None],
    ) -> Image:
        """From the Debian archive, over the host's network; progress goes to `on_line`."""
        suite = suite or debian.DEFAULT_SUITE
        wanted = debian.DEFAULT_PACKAGES if packages is None else tuple(packages)
        source = f"mmdebstrap {suite} {' '.join(wanted)}".strip()

        def fill(incoming: Path) -> _Filled:
            with debian.bootstrap(suite, wanted, on_line) as stream:
                return self._fill_from_tar(incoming, stream, source)

        return self._import(name, fill)

    def _fill_from_tar(self, incoming: Path, stream: BinaryIO, source: str) -> _Filled:
        with self._writer(incoming) as writer:
            digest = write_tar(stream, writer, Allowance(self._bounds.max_bytes))
            writer.finish()
        # What kind of archive it is shows only when all of it is there: entries come in any order.
        archive = incoming / "archive"
        (incoming / _ROOT).rename(archive)
        (incoming / _ROOT).mkdir(mode=0o755)
        filled = self._fill_from_archive(incoming, archive)
        if filled is not None:
            _remove(incoming, archive.name)
            return filled
        (incoming / _ROOT).rmdir()
        archive.rename(incoming / _ROOT)
        return _Filled(source, digest, writer.size_bytes, writer.entries)

    def _fill_from_archive(self, incoming: Path, directory: Path) -> _Filled | None:
        with ArchiveFiles(directory) as files:
            image: ArchivedImage | None = find_image(files, self._bounds)
            if image is None:
                return None
            with self._writer(incoming, layered=True) as writer:
                image.write(writer, self._bounds.max_bytes)
        return _Filled(image.kind, image.digest, writer.size_bytes, writer.entries, image.defaults)

    def _writer(self, incoming: Path, *, layered: bool = False) -> TreeWriter:
        return TreeWriter(incoming / _ROOT, self._bounds.max_entries, layered=layered)

    def _import(self, name: str, fill: Callable[[Path], _Filled]) -> Image:
        target = self._path(name)
        self._claim(name, "import image")
        token = uuid.uuid4().hex
        try:
            if target.exists():
                raise Conflict("the image exists", operation="import image", object=name)
            with storage_errors("import image", name):
                incoming = self._volumes.create(Collection.INCOMING, token, None)
                (incoming / _ROOT).mkdir(mode=0o755)
                image = Image(name=name, created_at=time.time(), **vars(fill(incoming)))
                (incoming / "image.json").write_text(json.dumps(asdict(image)))
                sync_filesystem(incoming)
                self._volumes.rename((Collection.INCOMING, token), (Collection.IMAGES, name))
        except BaseException:
            self._volumes.remove(Collection.INCOMING, token)
            raise
        finally:
            self._unclaim(name)
        return image

    def _claim(self, name: str, operation: str) -> None:
        """One import or removal of a name at a time, and none while it is in use."""
        with self._lock:
            if name in self._busy:
                raise Conflict(
                    "the image is being imported or removed", operation=operation, object=name
                )
            if self._users[name] > 0:
                raise Conflict(
                    "the image is in use",
                    operation=operation,
                    object=name,
                    cause=f"{self._users[name]} sandboxes have it as their root",
                )
            self._busy.add(name)

    def _unclaim(self, name: str) -> None:
        with self._lock:
            self._busy.discard(name)
            self._defaults.pop(name, None)  # the next one of that name is another

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                "not a name of an image",
                operation="find image",
                object=name[:80],
                cause="lower case letters, digits, dot, dash and underscore, at most 64",
            )
        return self._volumes.path(Collection.IMAGES, name)


def _decoded(table: dict[str, Any]) -> Image:
    defaults = table.pop("defaults", None) or {}
    for name in ("entrypoint", "command"):
        defaults[name] = tuple(defaults.get(name, ()))
    return Image(**table, defaults=ImageDefaults(**defaults))


def _remove(directory: Path, name: str) -> None:
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(directory_fd, name)
    finally:
        os.close(directory_fd)
