"""The files of an image archive that lies in a directory, which somebody else filled.

Every path is walked from the directory's own descriptor and no symbolic link is followed, but for
one at the end of a path that leads to another file of the archive: `docker save` stores a layer
that comes twice so. What is no regular file cannot be opened.
"""

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from sandboxd.errors import InvalidRequest

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ArchiveFiles:
    """Use as a context manager. Raises `InvalidRequest` for what is not there, or not a file."""

    def __init__(self, directory: Path) -> None:
        try:
            # Whoever names the directory may name it by a link.
            self._root_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(
                "the directory cannot be read",
                operation="import image",
                object=str(directory),
                cause=str(error.strerror),
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._root_fd)

    def has(self, name: str) -> bool:
        """Whether a file of that name lies at the top."""
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._root_fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def open(self, path: str) -> BinaryIO:
        """A file, to be read."""
        try:
            return self._open(_parts(path), may_be_link=True)
        except OSError as error:
            raise _refused(path, str(error.strerror)) from error

    def read(self, path: str, most_bytes: int) -> bytes:
        """All of a small file."""
        with self.open(path) as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise _refused(path, f"it has more than {most_bytes} bytes")
        return content

    def _open(self, parts: list[str], *, may_be_link: bool) -> BinaryIO:
        current = os.dup(self._root_fd)
        try:
            for name in parts[:-1]:
                below = os.open(name, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = below
            status = os.stat(parts[-1], dir_fd=current, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode) and may_be_link:
                target = posixpath.join(*parts[:-1], os.readlink(parts[-1], dir_fd=current))
                return self._open(_parts(posixpath.normpath(target)), may_be_link=False)
            descriptor = os.open(parts[-1], _FILE, dir_fd=current)
        finally:
            os.close(current)
        file = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            raise _refused("/".join(parts), "it is no regular file")
        return file


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in path or path.startswith("/"):
        raise _refused(path, "its path leaves the archive")
    return parts


def _refused(path: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the archive lacks a file that it names",
        operation="import image",
        object=path[:200].encode("utf-8", "backslashreplace").decode(),
        cause=cause,
    )
