"""The images of a node.

An image is a volume `images/<name>` with `image.json` and `rootfs/`. It is written as a volume of
the collection `incoming`, flushed, then renamed: a name either has the whole image or none. Images
never change afterwards; a sandbox has them mounted as an overlay's lower layer.

Lock order: `_lock` is a leaf and guards only the two dictionaries; no file operation is done under
it.
"""

from __future__ import annotations

import contextlib
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
from sandboxd.images.documents import ImageDefaults
from sandboxd.images.registry import PullWish
from sandboxd.images.sources import PULLED, ROOT, Filled, ImageSources
from sandboxd.storage import Collection, VolumeStore
from sandboxd.storage.mounts import sync_filesystem
from sandboxd.storage.volumes import storage_errors

_RECORD = "image.json"
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


class ImageStore:
    """Blocking; every method may be called from any thread once `open` has returned."""

    def __init__(self, volumes: VolumeStore, sources: ImageSources) -> None:
        self._volumes = volumes
        self._sources = sources
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._defaults: dict[str, ImageDefaults] = {}
        """Of images that are in use, so that a create need not read a file."""
        self._busy: set[str] = set()

    def open(self) -> None:
        """Remove what imports left that were cut off."""
        for token in self._volumes.names(Collection.INCOMING):
            self._volumes.remove(Collection.INCOMING, token)

    def stop(self) -> None:
        """What waits for other machines gives up."""
        self._sources.stop()

    def get(self, name: str) -> Image:
        """Raises `ImageNotFound`."""
        path = self._path(name)
        try:
            return _decoded(json.loads((path / _RECORD).read_text()))
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
            root = self._path(name) / ROOT
            if known and not root.is_dir():
                raise ImageNotFound(
                    "the image's directory is gone",
                    operation="use image",
                    object=name,
                    cause=f"no {root}; remove the image, and import it again",
                )
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
            unused = self._users[name] <= 0
            if unused:
                del self._users[name]
        if unused:
            # When it was used last, for `prune`; it may be gone, or never have been.
            with contextlib.suppress(OSError):
                os.utime(self._path(name) / _RECORD)

    def defaults(self, name: str) -> ImageDefaults:
        """Of an image that the caller has acquired."""
        with self._lock:
            return self._defaults[name]

    def remove(self, name: str) -> None:
        """Raises `Conflict` while a sandbox uses the image."""
        self.get(name)
        self._claim(name, "remove image")
        try:
            # In one step: a daemon that dies in the middle must not leave half an image.
            token = uuid.uuid4().hex
            with storage_errors("remove image", name):
                self._volumes.rename((Collection.IMAGES, name), (Collection.INCOMING, token))
            self._volumes.remove(Collection.INCOMING, token)
        finally:
            self._unclaim(name)

    def prune(self, unused_for_s: float, *, pulled_only: bool) -> Sequence[Image]:
        """Remove images that nothing uses and nothing has used for so long; returns them. What
        begins to be used meanwhile stays."""
        removed = []
        for image in self.list():
            if pulled_only and not image.source.startswith(PULLED):
                continue
            try:
                last_used_s = (self._path(image.name) / _RECORD).stat().st_mtime
                if time.time() - last_used_s >= unused_for_s:
                    self.remove(image.name)
                    removed.append(image)
            except (Conflict, ImageNotFound, FileNotFoundError):
                continue
        return removed

    def import_tar(self, name: str, stream: BinaryIO) -> Image:
        """From a tar of a root filesystem, of an OCI layout, or of `docker save`; plain, gzip or
        zstd."""
        return self._import(name, lambda place: self._sources.tar(place, stream, "tar"))

    def import_directory(self, name: str, path: Path) -> Image:
        """From a directory of the host: a root filesystem, or an OCI layout."""
        return self._import(name, lambda place: self._sources.directory(place, path))

    def build_base(
        self,
        name: str,
        suite: str | None,
        packages: Sequence[str] | None,
        on_line: Callable[[str], None],
    ) -> Image:
        """From the Debian archive, over the host's network; progress goes to `on_line`."""
        return self._import(
            name, lambda place: self._sources.debian(place, suite, packages, on_line)
        )

    def pull(
        self,
        name: str,
        wish: PullWish,
        on_line: Callable[[str], None],
        cancelled: threading.Event,
    ) -> Image:
        """From a registry, over the host's network; progress goes to `on_line`."""
        return self._import(
            name, lambda place: self._sources.registry(place, wish, on_line, cancelled)
        )

    def _import(self, name: str, fill: Callable[[Path], Filled]) -> Image:
        target = self._path(name)
        self._claim(name, "import image")
        token = uuid.uuid4().hex
        try:
            if target.exists():
                raise Conflict("the image exists", operation="import image", object=name)
            with storage_errors("import image", name):
                incoming = self._volumes.create(Collection.INCOMING, token, None)
                (incoming / ROOT).mkdir(mode=0o755)
                image = Image(name=name, created_at=time.time(), **vars(fill(incoming)))
                (incoming / _RECORD).write_text(json.dumps(asdict(image)))
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
