"""Where the tree of an image comes from: a tar stream, a directory, a Debian bootstrap.

All write through a `TreeWriter`, which is what keeps hostile entries inside. This module adds that
a stream cannot make the daemon use memory: headers are bounded, nothing is kept per entry.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO, Self

from sandboxd.errors import InvalidRequest
from sandboxd.images.tree_writer import Metadata, TreeWriter

CHUNK_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 20
MAX_ENTRIES = 10_000_000
MAX_EXTENSIONS_IN_A_ROW = 8
# Later ones no filesystem can store, and not every one says so.
MAX_TIME_S = float(1 << 33)
_GZIP_MAGIC = b"\x1f\x8b"
_EXTENSION_TYPES = frozenset(
    {
        tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
    }
)  # fmt: skip


class _BoundedArchive(tarfile.TarFile):
    """Counts what tarfile keeps, or what makes it call itself."""

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


class HashingReader(io.RawIOBase):
    """Passes a stream through, counting and hashing what was read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._pushed_back = b""

    def peek(self, size: int) -> bytes:
        """The first bytes, without consuming them."""
        while len(self._pushed_back) < size:
            more = self._stream.read(size - len(self._pushed_back))
            if not more:
                break
            self._pushed_back += more
        return self._pushed_back

    def read(self, size: int = -1) -> bytes:
        if self._pushed_back:
            data, self._pushed_back = self._pushed_back, b""
        else:
            data = self._stream.read(CHUNK_BYTES if size < 0 else size) or b""
        self._hash.update(data)
        return data

    def drain(self) -> None:
        """Read what follows the end of the archive, so that the sender is not cut off."""
        while self.read(CHUNK_BYTES):
            pass

    def digest(self) -> str:
        """`sha256:…` of all that was read."""
        return f"sha256:{self._hash.hexdigest()}"


def write_tar(stream: BinaryIO, writer: TreeWriter) -> str:
    """Unpack a plain or gzip tar; returns the digest of the stream."""
    reader = HashingReader(stream)
    # Others are left out: xz and zstd let the sender choose how much memory unpacking takes.
    mode = "r|gz" if reader.peek(2) == _GZIP_MAGIC else "r|"
    try:
        with _BoundedArchive.open(
            fileobj=reader, mode=mode, tarinfo=_BoundedTarInfo, bufsize=CHUNK_BYTES,  # type: ignore[call-overload]
        ) as archive:  # fmt: skip
            for entry in archive:
                archive.members = []  # it would remember every entry
                if writer.entries >= MAX_ENTRIES:
                    raise _not_a_tar(f"more than {MAX_ENTRIES} entries")
                _write_entry(archive, entry, writer)
    except (tarfile.TarError, EOFError, OverflowError, ValueError) as error:
        raise _not_a_tar(str(error)) from error
    if writer.entries == 0:
        raise _not_a_tar("it is empty")
    reader.drain()
    return reader.digest()


def _write_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, writer: TreeWriter) -> None:
    mtime_s = min(max(0.0, float(entry.mtime)), MAX_TIME_S)
    metadata = Metadata(entry.mode, entry.uid, entry.gid, mtime_s)
    if entry.issparse():
        raise _not_a_tar(f"{entry.name!r} is stored as a sparse file, which is not supported")
    if entry.isreg():
        content = archive.extractfile(entry)
        assert content is not None
        expected = entry.size

        def fill(descriptor: int) -> int:
            written = _copy(content, descriptor)
            if written != expected:
                raise _not_a_tar(f"it ends within {entry.name!r}")
            return written

        writer.file(entry.name, metadata, fill)
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


def _copy(source: object, descriptor: int) -> int:
    written = 0
    while chunk := source.read(CHUNK_BYTES):  # type: ignore[attr-defined]
        view = memoryview(chunk)
        while view:
            done = os.write(descriptor, view)
            written += done
            view = view[done:]
    return written


def _not_a_tar(cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the stream is not a tar archive of a root filesystem",
        operation="import image",
        object="tar stream",
        cause=cause,
    )


def write_directory(source: Path, writer: TreeWriter) -> None:
    """Copy a directory of the host, without what is mounted inside it."""
    try:
        root_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(
            "the directory cannot be read",
            operation="import image",
            object=str(source),
            cause=str(error.strerror),
        ) from error
    os.close(root_fd)
    seen: dict[tuple[int, int], str] = {}
    device = os.stat(source).st_dev
    writer.directory("", _metadata(os.stat(source)))
    pending = [(os.fspath(source), "")]
    while pending:
        host_directory, inside = pending.pop()
        with os.scandir(host_directory) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            path = f"{inside}/{entry.name}"
            if stat.S_ISDIR(status.st_mode):
                writer.directory(path, _metadata(status))
                if status.st_dev == device:
                    pending.append((entry.path, path))
                continue
            identity = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and identity in seen:
                writer.hard_link(path, _metadata(status), seen[identity])
                continue
            if _write_host_file(entry.path, path, status, writer) and status.st_nlink > 1:
                seen[identity] = path


def _write_host_file(host_path: str, path: str, status: os.stat_result, writer: TreeWriter) -> bool:
    metadata = _metadata(status)
    if stat.S_ISREG(status.st_mode):

        def fill(descriptor: int) -> int:
            with open(host_path, "rb", buffering=0) as content:
                return _copy(content, descriptor)

        writer.file(path, metadata, fill)
    elif stat.S_ISLNK(status.st_mode):
        writer.symbolic_link(path, metadata, os.readlink(host_path))
    elif stat.S_ISFIFO(status.st_mode):
        writer.fifo(path, metadata)
    else:
        return False
    return True


def _metadata(status: os.stat_result) -> Metadata:
    return Metadata(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime)
