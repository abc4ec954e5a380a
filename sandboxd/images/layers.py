"""Layers as OCI has them: tars, each of which says what is different from those below it.

A whiteout hides what *lower* layers have there, wherever in the layer it stands. So each layer but
the lowest is read twice: first for what it hides, which is removed, then for what it has. Digests
are verified at each reading.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from sandboxd.errors import InvalidRequest
from sandboxd.images.streams import Allowance, HashingReader, UnpackedReader
from sandboxd.images.tar_archive import Visit, visit_entries, write_entry
from sandboxd.images.tree_writer import TreeWriter

WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_OF_THE_FORMAT = ".wh..wh."


@dataclass(frozen=True)
class Layer:
    """One layer, and what it must be."""

    open: Callable[[], BinaryIO]
    """As it is stored: plain, gzip or zstd."""
    digest: str | None
    """Of what is stored; None where nobody says."""
    diff_id: str
    """Digest of the plain tar."""


def write_layers(layers: Sequence[Layer], writer: TreeWriter, max_bytes: int) -> None:
    """The tree that they show together, the lowest first."""
    hidden, written = Allowance(max_bytes), Allowance(max_bytes)
    for number, layer in enumerate(layers):
        if number > 0:
            _read(layer, hidden, lambda _, entry: _hide(entry, writer))
        _read(layer, written, lambda archive, entry: _write(archive, entry, writer))


def _read(layer: Layer, allowance: Allowance, visit: Visit) -> None:
    name = layer.digest or layer.diff_id
    with layer.open() as stored:
        packed = HashingReader(stored)
        tar = HashingReader(UnpackedReader(packed, allowance))
        try:
            visit_entries(tar, visit)
        except InvalidRequest as error:
            raise _refused(name, f"{error.object}: {error.cause or error.message}") from error
        packed.drain()
    for wanted, found in ((layer.digest, packed.digest()), (layer.diff_id, tar.digest())):
        if wanted is not None and wanted != found:
            raise _refused(name, f"its content has the digest {found}, not {wanted}")


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, writer: TreeWriter) -> None:
    if WHITEOUT not in entry.name or not _is_marker(entry.name):
        write_entry(archive, entry, writer)


def _hide(entry: tarfile.TarInfo, writer: TreeWriter) -> None:
    if WHITEOUT not in entry.name:
        return
    *above, last = _components(entry.name)
    directory = "/".join(above)
    if last == _OPAQUE:
        writer.empty(directory)
    elif last.startswith(WHITEOUT) and not _is_of_the_format(entry.name):
        name = last.removeprefix(WHITEOUT)
        if name in ("", ".", ".."):
            raise InvalidRequest(
                "not a whiteout", operation="import image", object=entry.name[:200], cause="no name"
            )
        writer.remove(f"{directory}/{name}")


def _is_marker(path: str) -> bool:
    return _components(path)[-1].startswith(WHITEOUT) or _is_of_the_format(path)


def _is_of_the_format(path: str) -> bool:
    """What union filesystems keep for themselves, which means nothing here."""
    return any(each.startswith(_OF_THE_FORMAT) for each in _components(path))


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")] or [""]


def _refused(name: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "a layer of the image cannot be taken", operation="import image", object=name, cause=cause
    )
