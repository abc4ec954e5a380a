"""Directories as tar archives, on this machine's side of `cp -r`.

What a sandbox sends is whatever its programs want it to be. Of it, only directories, files and hard
links among these come to be here: nothing outside of the directory that was named, also not by way
of symbolic links that are there, no devices, no set-id bits, no owners.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

import click

_CHUNK_BYTES = 1 << 18
_END = bytes(2 * tarfile.BLOCKSIZE)
_PERMISSIONS = 0o777


def pack(directory: Path, skipped: Callable[[str], None], *, itself: bool) -> Iterator[bytes]:
    """An archive of what is below; `itself`: and of the directory's permission bits.

    `skipped` is told of what is neither a file nor a directory. Raises `OSError`.
    """
    if itself:
        yield _header(directory, ".", os.lstat(directory))
    yield from _pack_below(directory, "", skipped)
    yield _END


def _pack_below(directory: Path, prefix: str, skipped: Callable[[str], None]) -> Iterator[bytes]:
    for item in sorted(directory.iterdir()):
        info, name = item.lstat(), prefix + item.name
        if stat.S_ISDIR(info.st_mode):
            yield _header(item, name, info)
            yield from _pack_below(item, f"{name}/", skipped)
        elif stat.S_ISREG(info.st_mode):
            yield from _pack_file(item, name)
        else:
            skipped(str(item))


def _header(path: Path, name: str, info: os.stat_result) -> bytes:
    member = tarfile.TarInfo(name)
    member.mode = info.st_mode & _PERMISSIONS
    member.mtime = int(time.time())
    if stat.S_ISDIR(info.st_mode):
        member.type = tarfile.DIRTYPE
    else:
        member.size = info.st_size
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _pack_file(path: Path, name: str) -> Iterator[bytes]:
    # Should it be another by now: no link is followed, no pipe waited for.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        info = os.fstat(file.fileno())
        yield _header(path, name, info)
        left = info.st_size
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise click.ClickException(f"{path} became shorter while it was copied")
            left -= len(chunk)
            yield chunk
        yield bytes(-info.st_size % tarfile.BLOCKSIZE)


def unpack(chunks: Iterator[bytes], directory: Path, skipped: Callable[[str], None]) -> None:
    """Makes what an archive holds below `directory`, which is its first member.

    `skipped` is told of each member that is neither a file nor a directory. Raises `ClickException`
    for an archive that leads elsewhere, `OSError`.
    """
    tree = _Tree(directory)
    try:
        with tarfile.open(
            mode="r|", fileobj=_reader(chunks), encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for member in archive:
                if not tree.make(member, archive):
                    skipped(member.name)
    except tarfile.TarError as error:
        raise click.ClickException(f"what the sandbox sent is no archive: {error}") from error
    finally:
        tree.finish()
    for _ in chunks:
        pass  # an error may come after the archive


def _reader(chunks: Iterator[bytes]) -> IO[bytes]:
    filled = filter(None, chunks)

    class Reader:
        def read(self, _size: int) -> bytes:
            return next(filled, b"")

    return cast(IO[bytes], Reader())


class _Tree:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._root = Path(os.path.realpath(directory))
        self._files: set[Path] = set()
        # Last of all: a directory may be closed to who fills it.
        self._modes: list[tuple[Path, int]] = []

    def make(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> bool:
        """False: it is none of those that come to be here."""
        mode = member.mode & _PERMISSIONS
        if member.isdir():
            self._make_directory(self._place(member.name, through=True), mode)
        elif member.isreg():
            path = self._place(member.name)
            with partial(path) as (file, name):
                archive.makefile(member, name)  # which leaves holes
                os.fchmod(file.fileno(), mode)
            self._files.add(path)
        elif member.islnk():
            self._make_link(self._place(member.name), self._place(member.linkname))
        else:
            return False
        return True

    def finish(self) -> None:
        for path, mode in reversed(self._modes):
            path.chmod(mode)

    def _place(self, name: str, *, through: bool = False) -> Path:
        """Where it belongs; `through`: a link at its end counts, too."""
        parts = PurePosixPath(name.lstrip("/")).parts
        path = self._directory.joinpath(*parts)
        real = Path(os.path.realpath(path if through else path.parent))
        inside = real.is_relative_to(self._root) or not parts
        if "\0" in name or ".." in parts or not inside:
            raise click.ClickException(f"refused {name!r}, which leads out of {self._directory}")
        return path

    def _make_directory(self, path: Path, mode: int) -> None:
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
        else:
            self._modes.append((path, mode))

    def _make_link(self, path: Path, target: Path) -> None:
        if target not in self._files:
            raise click.ClickException(f"refused {str(path)!r}, a link to what did not come")
        with partial(path) as (_, name):
            name.unlink()
            os.link(target, name, follow_symlinks=False)


@contextlib.contextmanager
def partial(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A file, and its name, that becomes `path` at the end of the block. One that breaks leaves
    nothing."""
    name = path.with_name(f".{path.name}.{os.getpid()}.part")
    file = name.open("xb")
    try:
        with file:
            yield file, name
        name.replace(path)
    finally:
        name.unlink(missing_ok=True)
