"""Images as others keep them: OCI layouts, and archives of `docker save`; both as directories.

Their digests are verified: of every document before it is read, of every layer while it is. The
digest of such an image is that of its configuration, which names its layers and is the same however
it was stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from sandboxd.errors import ImageNotFound, InvalidRequest, VenusError
from sandboxd.images.archive_files import ArchiveFiles
from sandboxd.images.bounds import ImageBounds
from sandboxd.images.documents import (
    MAX_DOCUMENT_BYTES,
    Descriptor,
    ImageConfig,
    ImageDefaults,
    parse_config,
    parse_docker_manifest,
    parse_index,
    parse_manifest,
)
from sandboxd.images.layers import Layer, write_layers
from sandboxd.images.tree_writer import TreeWriter

MAX_NESTED_INDEXES = 4
_LAYOUT_FILE, _INDEX_FILE, _DOCKER_FILE = "oci-layout", "index.json", "manifest.json"


@dataclass(frozen=True)
class ArchivedImage:
    """What an archive holds, ready to be written."""

    kind: str
    digest: str
    defaults: ImageDefaults
    layers: tuple[Layer, ...]

    def write(self, writer: TreeWriter, max_bytes: int) -> None:
        """Its tree."""
        write_layers(self.layers, writer, max_bytes)
        writer.finish()
        if self.defaults.cwd:
            # Commands start in it, and a builder need not have made it.
            writer.make_missing_directory(self.defaults.cwd)


def find_image(files: ArchiveFiles, bounds: ImageBounds) -> ArchivedImage | None:
    """The one image for this kind of machine, or None: these are no files of an archive.

    `InvalidRequest` when there are several, `ImageNotFound` when there is none of this kind.
    """
    if files.has(_LAYOUT_FILE) and files.has(_INDEX_FILE):
        return _of_layout(files, bounds)
    if files.has(_DOCKER_FILE) and (image := _of_docker_archive(files, bounds)) is not None:
        return image
    return None


def _of_layout(files: ArchiveFiles, bounds: ImageBounds) -> ArchivedImage:
    index = files.read(_INDEX_FILE, MAX_DOCUMENT_BYTES)
    manifest = _only_manifest(files, parse_index(index))
    config, layers = parse_manifest(_blob(files, manifest), bounds.max_layers)
    parsed = parse_config(_blob(files, config), bounds.max_layers)
    openers = [_opener(files, each.path) for each in layers]
    digests: list[str | None] = [each.digest for each in layers]
    return _image("oci layout", config.digest, parsed, openers, digests)


def _only_manifest(files: ArchiveFiles, found: list[Descriptor]) -> Descriptor:
    for _ in range(MAX_NESTED_INDEXES):
        fitting = list({each.digest: each for each in found if each.fits}.values())
        if not fitting:
            raise ImageNotFound(
                "there is no image for this kind of machine",
                operation="import image",
                object="archive",
                cause=f"it is for {_platforms(found)}" if found else "it holds none",
            )
        if len(fitting) > 1:
            raise _several([each.reference or each.digest for each in fitting])
        if not fitting[0].is_index:
            return fitting[0]
        found = parse_index(_blob(files, fitting[0]))
    raise InvalidRequest(
        "the image cannot be taken",
        operation="import image",
        object="archive",
        cause=f"more than {MAX_NESTED_INDEXES} indexes lead to it",
    )


def _platforms(found: list[Descriptor]) -> str:
    return ", ".join(sorted({"/".join(each.platform or ()) for each in found}))[:300]


def _blob(files: ArchiveFiles, descriptor: Descriptor) -> bytes:
    content = files.read(descriptor.path, MAX_DOCUMENT_BYTES)
    found = _digest(content)
    if found != descriptor.digest:
        raise _changed(descriptor.digest, found)
    return content


def _of_docker_archive(files: ArchiveFiles, bounds: ImageBounds) -> ArchivedImage | None:
    content = files.read(_DOCKER_FILE, MAX_DOCUMENT_BYTES)
    try:
        entries = parse_docker_manifest(content, bounds.max_layers)
    except VenusError:
        return None  # a file of that name in a root filesystem
    if any(not each.config for each in entries):
        return None
    entries = list({each.config: each for each in entries}.values())
    if len(entries) > 1:
        raise _several([", ".join(each.tags) or each.config for each in entries])
    [entry] = entries
    config = files.read(entry.config, MAX_DOCUMENT_BYTES)
    digest = _digest(config)
    named = entry.config.rpartition("/")[2].removesuffix(".json")
    if len(named) == 64 and f"sha256:{named}" != digest:
        raise _changed(f"sha256:{named}", digest)
    parsed = parse_config(config, bounds.max_layers)
    openers = [_opener(files, path) for path in entry.layers]
    return _image("docker archive", digest, parsed, openers, [None] * len(openers))


def _opener(files: ArchiveFiles, path: str) -> Callable[[], BinaryIO]:
    return lambda: files.open(path)


def _image(
    kind: str,
    digest: str,
    config: ImageConfig,
    openers: list[Callable[[], BinaryIO]],
    digests: list[str | None],
) -> ArchivedImage:
    if len(openers) != len(config.diff_ids):
        raise InvalidRequest(
            "the image cannot be taken",
            operation="import image",
            object=digest,
            cause=f"it has {len(openers)} layers and names {len(config.diff_ids)}",
        )
    layers = map(Layer, openers, digests, config.diff_ids)
    return ArchivedImage(kind, digest, config.defaults, tuple(layers))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _changed(wanted: str, found: str) -> InvalidRequest:
    return InvalidRequest(
        "a document of the image is not what its name says",
        operation="import image",
        object=wanted,
        cause=f"its content has the digest {found}",
    )


def _several(names: list[str]) -> InvalidRequest:
    return InvalidRequest(
        "the archive holds several images",
        operation="import image",
        object="archive",
        cause=f"{len(names)}: {'; '.join(names)}"[:500],
    )
