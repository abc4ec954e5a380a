"""Writes the tree of an image, from entries that somebody unknown chose.

Invariant: nothing outside the tree is ever created, changed or read. Every path is walked from the
tree's own descriptor, component by component, and no symbolic link is followed: an entry *below* a
link is an error, wherever the link points. Ownership is kept as plain numbers; ids that no sandbox
can map are an error. Device nodes and sockets are left out (a sandbox has its own /dev), and so are
extended attributes (file capabilities have no effect under no_new_privs).

An entry replaces an earlier one of its name. A directory that something else replaces goes with all
that is in it where the tree is made of layers; in a single archive that is an error.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sandboxd.errors import InvalidRequest, TooLarge
from sandboxd.images.streams import CHUNK_BYTES
from sandboxd.storage.tree_removal import remove_tree

MAX_ID = 65535
MAX_DEPTH = 256
MAX_NAME_BYTES = 255
# Times of further directories are those of the import: what is kept per entry must be bounded.
MAX_DIRECTORY_TIMES = 200_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Metadata:
    """What every entry carries."""

    mode: int
    uid: int
    gid: int
    mtime_s: float


class Content(Protocol):
    """Where the bytes of a file come from."""

    def read(self, size: int, /) -> bytes | None: ...


class TreeWriter:
    """Writes below one directory. Use as a context manager; not for several threads."""

    def __init__(
        self, root: str | os.PathLike[str], max_entries: int, *, layered: bool = False
    ) -> None:
        self._max_entries = max_entries
        self._layered = layered
        self._root_fd = os.open(root, _DIRECTORY)
        self._parent: tuple[str, ...] = ()
        self._parent_fd = self._root_fd
        # Applied last: creating an entry changes its directory's time, and a mode may forbid
        # nothing to root but should not be there half-way either.
        self._directory_times: dict[tuple[str, ...], float] = {}
        self.size_bytes = 0
        self.entries = 0

    def __enter__(self) -> TreeWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._leave_parent()
        os.close(self._root_fd)

    def finish(self) -> None:
        """Set what only the last write may set."""
        for parts, mtime_s in self._directory_times.items():
            with self._directory(parts) as directory_fd:
                if directory_fd is not None:  # a later layer may have removed it
                    os.utime(directory_fd, (mtime_s, mtime_s))

    def directory(self, path: str, metadata: Metadata) -> None:
        """A directory; an existing one gets the new metadata."""
        parts = _parts(path)
        self._count(path, metadata)
        if not parts:
            _set_owner_and_mode(self._root_fd, metadata)
            self._remember_time((), metadata)
            return
        parent_fd, name = self._enter(parts)
        existing = _lstat(parent_fd, name)
        if existing is not None and not stat.S_ISDIR(existing.st_mode):
            os.unlink(name, dir_fd=parent_fd)
            existing = None
        if existing is None:
            os.mkdir(name, 0o700, dir_fd=parent_fd)
        directory_fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
        try:
            _set_owner_and_mode(directory_fd, metadata)
        finally:
            os.close(directory_fd)
        self._remember_time(parts, metadata)

    def _remember_time(self, parts: tuple[str, ...], metadata: Metadata) -> None:
        if parts in self._directory_times or len(self._directory_times) < MAX_DIRECTORY_TIMES:
            self._directory_times[parts] = metadata.mtime_s

    def file(self, path: str, metadata: Metadata, content: Content) -> int:
        """A regular file; returns how many bytes it has."""
        parent_fd, name = self._place(path, metadata)
        file_fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent_fd)
        try:
            size_bytes = _copy(content, file_fd)
            _set_owner_and_mode(file_fd, metadata)
            os.utime(file_fd, (metadata.mtime_s, metadata.mtime_s))
        finally:
            os.close(file_fd)
        self.size_bytes += size_bytes
        return size_bytes

    def symbolic_link(self, path: str, metadata: Metadata, target: str) -> None:
        """A symbolic link; the target is data, whatever it says."""
        parent_fd, name = self._place(path, metadata)
        if not target or len(os.fsencode(target)) >= 4096:
            raise _refused(path, "the target of a symbolic link is empty or too long")
        os.symlink(target, name, dir_fd=parent_fd)
        os.chown(name, metadata.uid, metadata.gid, dir_fd=parent_fd, follow_symlinks=False)
        times = (metadata.mtime_s, metadata.mtime_s)
        os.utime(name, times, dir_fd=parent_fd, follow_symlinks=False)

    def hard_link(self, path: str, metadata: Metadata, existing_path: str) -> None:
        """Another name for a file that was written before."""
        existing = _parts(existing_path)
        if not existing:
            raise _refused(path, "a hard link to the root")
        source_fd = self._walk(existing[:-1], create=False)
        try:
            found = _lstat(source_fd, existing[-1])
            if found is None or stat.S_ISDIR(found.st_mode):
                raise _refused(path, f"a hard link to {existing_path!r}, which is no file here")
            if existing == _parts(path):
                return
            parent_fd, name = self._place(path, metadata)
            os.link(
                existing[-1], name, src_dir_fd=source_fd, dst_dir_fd=parent_fd,
                follow_symlinks=False,
            )  # fmt: skip
        finally:
            os.close(source_fd)

    def fifo(self, path: str, metadata: Metadata) -> None:
        """A named pipe."""
        parent_fd, name = self._place(path, metadata)
        os.mkfifo(name, 0o600, dir_fd=parent_fd)
        os.chown(name, metadata.uid, metadata.gid, dir_fd=parent_fd, follow_symlinks=False)
        # Safe although it follows links: the name was made here, by the only writer of the tree.
        os.chmod(name, stat.S_IMODE(metadata.mode), dir_fd=parent_fd)

    def remove(self, path: str) -> None:
        """What earlier layers have there goes, with all that is in it; it need not be there."""
        self._count_one()
        parts = _parts(path)
        if not parts:
            raise _refused(path, "the root cannot be removed")
        self._leave_parent()  # it may go, too
        with self._directory(parts[:-1]) as parent_fd:
            if parent_fd is not None:
                remove_tree(parent_fd, parts[-1])

    def empty(self, path: str) -> None:
        """All that earlier layers have in a directory goes; it need not be there."""
        self._count_one()
        self._leave_parent()
        with self._directory(_parts(path)) as directory_fd:
            if directory_fd is not None:
                for name in os.listdir(directory_fd):
                    remove_tree(directory_fd, name)

    def make_missing_directory(self, path: str) -> None:
        """As `mkdir -p`, but where a link or a file is in the way it stays so."""
        with contextlib.suppress(InvalidRequest):
            os.close(self._walk(_parts(path), create=True))

    def _place(self, path: str, metadata: Metadata) -> tuple[int, str]:
        """The directory and the free name for a new entry; an earlier one of that name goes."""
        parts = _parts(path)
        self._count(path, metadata)
        if not parts:
            raise _refused(path, "the root is not a directory")
        parent_fd, name = self._enter(parts)
        existing = _lstat(parent_fd, name)
        if existing is not None:
            if stat.S_ISDIR(existing.st_mode) and not self._layered:
                raise _refused(path, "it replaces a directory")
            remove_tree(parent_fd, name)
        return parent_fd, name

    def _count(self, path: str, metadata: Metadata) -> None:
        if not (0 <= metadata.uid <= MAX_ID and 0 <= metadata.gid <= MAX_ID):
            raise _refused(path, f"owner {metadata.uid}:{metadata.gid} is above {MAX_ID}")
        self._count_one()

    def _count_one(self) -> None:
        self.entries += 1
        if self.entries > self._max_entries:
            raise TooLarge(
                "the image is too large",
                operation="import image",
                object="image",
                cause=f"it has more than {self._max_entries} entries",
            )

    def _enter(self, parts: tuple[str, ...]) -> tuple[int, str]:
        """Descriptor of the parent directory; the last one is kept, as entries come in order."""
        parent = parts[:-1]
        if parent != self._parent:
            descriptor = self._walk(parent, create=True)
            self._leave_parent()
            self._parent, self._parent_fd = parent, descriptor
        return self._parent_fd, parts[-1]

    def _leave_parent(self) -> None:
        if self._parent_fd != self._root_fd:
            os.close(self._parent_fd)
        self._parent, self._parent_fd = (), self._root_fd

    @contextlib.contextmanager
    def _directory(self, parts: tuple[str, ...]) -> Iterator[int | None]:
        """Descriptor of what is there, if all of the path is directories."""
        try:
            descriptor = self._walk(parts, create=False)
        except InvalidRequest:
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _walk(self, parts: tuple[str, ...], *, create: bool) -> int:
        current = os.dup(self._root_fd)
        try:
            for name in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=current)
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=current)
                except OSError as error:
                    raise _refused(
                        "/".join(parts), f"{name!r} is no directory: {error.strerror}"
                    ) from error
                os.close(current)
                current = below
        except BaseException:
            os.close(current)
            raise
        return current


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in path:
        raise _refused(path, "its path leaves the image")
    if len(parts) > MAX_DEPTH:
        raise _refused(path, f"its path has more than {MAX_DEPTH} components")
    if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
        raise _refused(path, f"a name in it is longer than {MAX_NAME_BYTES} bytes")
    return parts


def _refused(path: str, cause: str) -> InvalidRequest:
    shown = path if len(path) <= 200 else path[:200] + "…"
    return InvalidRequest(
        "the image has an entry that cannot be taken",
        operation="import image",
        object=shown.encode("utf-8", "backslashreplace").decode(),
        cause=cause,
    )


def _lstat(directory_fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _copy(content: Content, descriptor: int) -> int:
    written = 0
    while chunk := content.read(CHUNK_BYTES):
        view = memoryview(chunk)
        while view:
            done = os.write(descriptor, view)
            written += done
            view = view[done:]
    return written


def _set_owner_and_mode(descriptor: int, metadata: Metadata) -> None:
    # Owner first: changing it clears the set-user-id bits.
    os.fchown(descriptor, metadata.uid, metadata.gid)
    os.fchmod(descriptor, stat.S_IMODE(metadata.mode))
