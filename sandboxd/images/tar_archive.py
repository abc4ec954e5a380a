"""Tar archives from somebody unknown, entry by entry.

Headers are bounded, nothing is kept per entry, and an archive without its end mark is an error.
What the entries become is a `TreeWriter`'s, which is what keeps hostile ones inside.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, Self

from sandboxd.errors import InvalidRequest
from sandboxd.images.streams import CHUNK_BYTES, Allowance, HashingReader, UnpackedReader
from sandboxd.images.tree_writer import Metadata, TreeWriter

MAX_HEADER_BYTES = 1 << 20
MAX_EXTENSIONS_IN_A_ROW = 8
# Later ones no filesystem can store, and not every one says so.
MAX_TIME_S = float(1 << 33)
_EXTENSION_TYPES = frozenset(
    {
        tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
    }
)  # fmt: skip
Visit = Callable[[tarfile.TarFile, tarfile.TarInfo], None]


class _BoundedArchive(tarfile.TarFile):
    """Counts what tarfile keeps, or what makes it call itself."""

    members: list[tarfile.TarInfo]
    extensions_in_a_row = 0
    global_bytes = 0


class _BoundedTarInfo(tarfile.TarInfo):
    """Refuses headers whose content tarfile would read into memory whole, however long, and an
    archive without its end mark, which tarfile would take for a complete one."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise _not_a_tar(f"it is cut or damaged: {error}") from error

    def _proc_member(self, archive: _BoundedArchive) -> tarfile.TarInfo:
        if self.type in _EXTENSION_TYPES:
            if not 0 <= self.size <= MAX_HEADER_BYTES:
                raise _not_a_tar(f"an extension header of {self.size} bytes")
            archive.extensions_in_a_row += 1
            archive.global_bytes += self.size if self.type == tarfile.XGLTYPE else 0
            if archive.extensions_in_a_row > MAX_EXTENSIONS_IN_A_ROW:
                raise _not_a_tar(f"more than {MAX_EXTENSIONS_IN_A_ROW} extension headers in a row")
            if archive.global_bytes > MAX_HEADER_BYTES:
                raise _not_a_tar(f"global headers of more than {MAX_HEADER_BYTES} bytes")
        else:
            archive.extensions_in_a_row = 0
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _not_a_tar(f"{self.name!r} is stored as a sparse file, which is not supported")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise _not_a_tar(f"{self.name!r} is stored as a sparse file, which is not supported")


def write_tar(stream: BinaryIO, writer: TreeWriter, allowance: Allowance) -> str:
    """Unpack a plain, gzip or zstd tar; returns the digest of the stream."""
    packed = HashingReader(stream)
    tar = HashingReader(UnpackedReader(packed, allowance))
    if visit_entries(tar, lambda archive, entry: write_entry(archive, entry, writer)) == 0:
        raise _not_a_tar("it is empty")
    packed.drain()
    return packed.digest()


def visit_entries(tar: HashingReader, visit: Visit) -> int:
    """Call `visit` with each entry, and read the tar to its end. Returns their number."""
    count = 0
    with _tar_errors():
        with _BoundedArchive.open(
            fileobj=tar, mode="r|", tarinfo=_BoundedTarInfo, bufsize=CHUNK_BYTES,
        ) as archive:  # fmt: skip
            for entry in archive:
                archive.members = []  # it would remember every entry
                visit(archive, entry)
                count += 1
    tar.drain()
    return count


@contextlib.contextmanager
def _tar_errors() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, OverflowError, ValueError) as error:
        raise _not_a_tar(str(error)) from error


def write_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, writer: TreeWriter) -> None:
    """What one entry says, into the tree."""
    mtime_s = min(max(0.0, float(entry.mtime)), MAX_TIME_S)
    metadata = Metadata(entry.mode, entry.uid, entry.gid, mtime_s)
    if entry.issparse():
        raise _not_a_tar(f"{entry.name!r} is stored as a sparse file, which is not supported")
    if entry.isreg():
        content = archive.extractfile(entry)
        assert content is not None
        if writer.file(entry.name, metadata, content) != entry.size:
            raise _not_a_tar(f"it ends within {entry.name!r}")
    elif entry.isdir():
        writer.directory(entry.name, metadata)
    elif entry.issym():
        writer.symbolic_link(entry.name, metadata, entry.linkname)
    elif entry.islnk():
        writer.hard_link(entry.name, metadata, entry.linkname)
    elif entry.isfifo():
        writer.fifo(entry.name, metadata)
    elif not (entry.ischr() or entry.isblk()):
        raise _not_a_tar(f"{entry.name!r} is of unknown type {entry.type!r}")


def _not_a_tar(cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the stream is not a tar archive of a root filesystem",
        operation="import image",
        object="tar stream",
        cause=cause,
    )
