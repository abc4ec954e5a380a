"""Several frozen upper directories become one, which does in their place what they do together.

`python -m sandboxd.storage.layer_merge BASE UPPER…` applies the uppers, the lowest first, to BASE,
a writable copy of the layer below them all. A program of its own, because it takes as long as the
sandboxes chose, and so that it ends with the daemon.

What shines through from the layers below all these stays open: whiteouts stay, and a directory that
is renamed in an upper gets the path that the layers below know it by. The trees are the sandbox's:
no link is followed, and everything is reached from an open directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxd.errors import InternalError, LimitExceeded, StorageFull
from sandboxd.storage.file_copy import copy_attributes, copy_file, copy_times
from sandboxd.storage.layer_marks import (
    OPEN_DIRECTORY,
    OVERLAY,
    LayerPath,
    Marks,
    is_whiteout,
    make_whiteout,
    read_marks,
    require_whole,
    resolve,
    status_of,
    write_marks,
)
from sandboxd.storage.tree_removal import remove_tree

PR_SET_PDEATHSIG = 1
TIMEOUT_S = 300.0
"""For all layers of one merge."""


@dataclass
class _Moved:
    """A directory of the upper that was renamed: what it was made of."""

    source: LayerPath
    """In the base."""
    below: LayerPath | None
    """In the layers below the base; None: nothing shines through."""
    staged: bytes = b""
    """Where that of the base was put aside; empty: the base has none."""


def _keeps(attribute: str) -> bool:
    return not attribute.startswith(OVERLAY)


class _Merge:
    """Of one upper over the base."""

    def __init__(self, base_fd: int, upper_fd: int, aside_fd: int) -> None:
        self._base_fd = base_fd
        self._upper_fd = upper_fd
        self._aside_fd = aside_fd
        self._moved: dict[LayerPath, _Moved] = {}
        self._linked: dict[int, bytes] = {}
        self._count = 0

    def run(self) -> None:
        for place, source in _renamed(self._upper_fd):
            there, below = resolve(self._base_fd, source)
            self._moved[place] = _Moved(source, below, self._name() if there else b"")
        # The deepest first: what lies in another one that is moved must not go with it.
        for moved in sorted(self._moved.values(), key=lambda each: len(each.source), reverse=True):
            if moved.staged:
                self._put_aside(moved)
        self._apply()

    def _name(self) -> bytes:
        self._count += 1
        return b"%d" % self._count

    def _put_aside(self, moved: _Moved) -> None:
        with contextlib.ExitStack() as stack:
            at = self._base_fd
            for name in moved.source[:-1]:
                at = os.open(name, OPEN_DIRECTORY, dir_fd=at)
                stack.callback(os.close, at)
            os.rename(moved.source[-1], moved.staged, src_dir_fd=at, dst_dir_fd=self._aside_fd)

    def _apply(self) -> None:
        """Depth first, without recursion: a sandbox makes trees as deep as it likes."""
        with contextlib.ExitStack() as stack:
            upper, base = os.dup(self._upper_fd), os.dup(self._base_fd)
            levels = [_Level(stack, (), upper, base)]
            while levels:
                level = levels[-1]
                entry = next(level.entries, None)
                if entry is None:
                    level.finish()
                    levels.pop()
                    continue
                name = os.fsencode(entry.name)
                status = os.stat(name, dir_fd=level.upper_fd, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    levels.append(self._enter(stack, level, name))
                else:
                    self._replace(level, name, status)

    def _replace(self, level: _Level, name: bytes, status: os.stat_result) -> None:
        remove_tree(level.base_fd, os.fsdecode(name))
        if is_whiteout(status):
            # Where nothing is below, the name would show as a file that cannot be opened.
            if level.shines_through:
                make_whiteout(level.base_fd, name)
            return
        source = f"/proc/self/fd/{level.upper_fd}/".encode() + name
        require_whole(name, os.listxattr(source, follow_symlinks=False))
        if status.st_nlink == 1:
            copy_file(level.upper_fd, name, level.base_fd, name, _keeps)
            return
        # Other names of it may come anywhere: it has one aside until all is done.
        first = self._linked.get(status.st_ino)
        if first is None:
            first = self._linked[status.st_ino] = self._name()
            copy_file(level.upper_fd, name, self._aside_fd, first, _keeps)
        os.link(
            first, name,
            src_dir_fd=self._aside_fd, dst_dir_fd=level.base_fd, follow_symlinks=False,
        )  # fmt: skip

    def _enter(self, stack: contextlib.ExitStack, level: _Level, name: bytes) -> _Level:
        upper_fd = os.open(name, OPEN_DIRECTORY, dir_fd=level.upper_fd)
        marks = read_marks(upper_fd)
        there = status_of(level.base_fd, name)
        moved = self._moved.get((*level.place, name))
        own: Marks | None = None
        if moved is not None:
            remove_tree(level.base_fd, os.fsdecode(name))
            redirect = b"/" + b"/".join(moved.below or ())
            own = Marks(opaque=True) if moved.below is None else Marks(redirect=redirect)
            if moved.staged:
                os.rename(moved.staged, name, src_dir_fd=self._aside_fd, dst_dir_fd=level.base_fd)
            else:
                os.mkdir(name, 0o700, dir_fd=level.base_fd)
        elif marks.opaque or there is None or not stat.S_ISDIR(there.st_mode):
            # What is no directory in the base hides whatever is below.
            own = Marks(opaque=marks.opaque or there is not None)
            remove_tree(level.base_fd, os.fsdecode(name))
            os.mkdir(name, 0o700, dir_fd=level.base_fd)
        base_fd = os.open(name, OPEN_DIRECTORY, dir_fd=level.base_fd)
        if own is not None:
            write_marks(base_fd, own)
        return _Level(stack, (*level.place, name), upper_fd, base_fd, level.shines_through)


class _Level:
    """A directory that is being gone through, in the upper and in the base. Owns both."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        place: LayerPath,
        upper_fd: int,
        base_fd: int,
        above_shines_through: bool = True,
    ) -> None:
        self.place = place
        self.upper_fd = upper_fd
        self.base_fd = base_fd
        marks = read_marks(base_fd)
        self.shines_through = not marks.opaque and (above_shines_through or bool(marks.redirect))
        self._status = os.fstat(upper_fd)
        self._stack = stack.enter_context(contextlib.ExitStack())
        self._stack.callback(os.close, upper_fd)
        self._stack.callback(os.close, base_fd)
        self.entries: Iterator[os.DirEntry[str]] = self._stack.enter_context(os.scandir(upper_fd))

    def finish(self) -> None:
        """All that is in it is done."""
        copy_attributes(self.upper_fd, self.base_fd, self._status, _keeps)
        copy_times(self.base_fd, self._status)
        self._stack.close()


def _renamed(upper_fd: int) -> Iterator[tuple[LayerPath, LayerPath]]:
    """Every directory with a redirect: where it is, and the path of what it was made of."""
    with contextlib.ExitStack() as stack:
        levels: list[tuple[LayerPath, LayerPath | None, contextlib.ExitStack, int]] = []
        entries: list[Iterator[os.DirEntry[str]]] = []

        def enter(fd: int, place: LayerPath, below: LayerPath | None) -> None:
            own = stack.enter_context(contextlib.ExitStack())
            own.callback(os.close, fd)
            levels.append((place, below, own, fd))
            entries.append(own.enter_context(os.scandir(fd)))

        enter(os.dup(upper_fd), (), ())
        while levels:
            place, below, own, fd = levels[-1]
            entry = next(entries[-1], None)
            if entry is None:
                own.close()
                levels.pop()
                entries.pop()
                continue
            if not entry.is_dir(follow_symlinks=False):
                continue
            name = os.fsencode(entry.name)
            child = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            marks = read_marks(child)
            child_below = marks.below(name, below)
            if marks.redirect and not marks.opaque and child_below is not None:
                yield (*place, name), child_below
            enter(child, (*place, name), child_below)


def merge(base: Path, uppers: Sequence[Path]) -> None:
    """Apply the uppers to the base, the first one first."""
    aside = base.parent / "aside"
    for upper in uppers:
        aside.mkdir(mode=0o700)
        with contextlib.ExitStack() as stack:
            base_fd, upper_fd, aside_fd = (
                os.open(path, OPEN_DIRECTORY) for path in (base, upper, aside)
            )
            for descriptor in (base_fd, upper_fd, aside_fd):
                stack.callback(os.close, descriptor)
            _Merge(base_fd, upper_fd, aside_fd).run()
        parent_fd = os.open(base.parent, OPEN_DIRECTORY)
        try:
            remove_tree(parent_fd, aside.name)
        finally:
            os.close(parent_fd)


def merge_apart(base: Path, uppers: Sequence[Path]) -> None:
    """As `merge`, in a process of its own; `StorageFull`, `LimitExceeded` or `InternalError`."""
    operation, layer = "merge layers", base.parent.name
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, base, *uppers],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LimitExceeded(
            "the layers hold too much to be merged",
            operation=operation,
            object=layer,
            cause=f"it takes more than {TIMEOUT_S:g} s",
        ) from None
    if done.returncode != 0:
        full = done.returncode in (errno.ENOSPC, errno.EDQUOT)
        cause = done.stderr[-500:].decode(errors="replace").strip()
        raise (StorageFull if full else InternalError)(
            "the layers could not be merged",
            operation=operation,
            object=layer,
            cause=cause or f"status {done.returncode}",
        )


def main(arguments: Sequence[str]) -> int:
    """The status is the error number; what went wrong is said on standard error."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    base, *uppers = map(Path, arguments)
    try:
        merge(base, uppers)
    except OSError as error:
        print(error, file=sys.stderr)
        return error.errno or 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
