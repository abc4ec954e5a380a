"""Layers that are merged look as they did: compared through overlays of the kernel's own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxd.storage.layer_merge import merge
from sandboxd.storage.tree_copy import copy_tree

SEEDS = int(os.environ.get("VENUS_MERGE_SEEDS", "12"))
STEPS, LAYERS = 40, 6
OPTIONS = "redirect_dir=on,index=off,metacopy=off"


@contextlib.contextmanager
def overlay(lower: list[Path], upper: Path | None, at: Path) -> Iterator[Path]:
    """`lower`: the topmost first."""
    at.mkdir(exist_ok=True)
    options = f"lowerdir={':'.join(map(str, lower))},{OPTIONS}"
    if upper is not None:
        (upper.parent / "work").mkdir()
        options += f",upperdir={upper},workdir={upper.parent / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", options, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def description(root: Path) -> dict[str, object]:
    """Everything that a program can see below a directory, but for numbers of files."""
    found: dict[str, object] = {}
    links: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for directory, directories, files in os.walk(root):
        for name in ["", *directories, *files]:
            path = Path(directory, name)
            status = path.lstat()
            where = str(path.relative_to(root))
            facts: list[object] = [status.st_mode, status.st_uid, status.st_gid, status.st_rdev]
            facts.append(status.st_mtime_ns)
            facts.append(
                sorted(
                    (each, os.getxattr(path, each, follow_symlinks=False))
                    for each in os.listxattr(path, follow_symlinks=False)
                    if not each.startswith("trusted.overlay.")
                )
            )
            if stat.S_ISLNK(status.st_mode):
                facts.append(os.readlink(path))
            if stat.S_ISREG(status.st_mode):
                facts += [status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
            if stat.S_ISDIR(status.st_mode):
                facts.append(sorted(os.listdir(path)))
            else:
                # Not their number: an overlay also counts names that a layer above has removed.
                links[status.st_dev, status.st_ino].add(where)
            found[where] = facts
    found["links"] = sorted(sorted(each) for each in links.values() if len(each) > 1)
    return found


class Vandal:
    """Changes a tree at random, in every way that leaves a mark in an upper directory."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)
        self._count = 0

    def step(self) -> None:
        act: Callable[[], None] = self._random.choice(
            [
                self._create, self._create, self._write, self._write, self._mkdir, self._mkdir,
                self._remove, self._rename_file, self._rename_directory, self._rename_directory,
                self._rename_directory, self._replace_directory, self._link, self._symlink,
                self._attributes, self._swap, self._exchange_kind, self._fifo, self._sparse,
            ]
        )  # fmt: skip
        # What is not possible just now is not done.
        with contextlib.suppress(OSError, IndexError):
            act()

    def _all(self) -> list[Path]:
        return sorted(self._root.rglob("*"))

    def _directory(self) -> Path:
        found = [each for each in self._all() if each.is_dir() and not each.is_symlink()]
        return self._random.choice([self._root, *found])

    def _file(self) -> Path:
        return self._random.choice(
            [each for each in self._all() if each.is_file() and not each.is_symlink()]
        )

    def _new(self) -> Path:
        # Few names, so that things come back where others were.
        return self._directory() / f"n{self._random.randrange(12)}"

    def _create(self) -> None:
        self._count += 1
        with self._new().open("x") as file:
            file.write(f"{self._count} {self._random.random()}")

    def _write(self) -> None:
        with self._file().open("a") as file:
            file.write(f" {self._random.random()}")

    def _mkdir(self) -> None:
        self._new().mkdir(mode=self._random.choice([0o755, 0o700, 0o1777]))

    def _remove(self) -> None:
        subprocess.run(["rm", "-rf", self._random.choice(self._all())], check=True)

    def _rename_file(self) -> None:
        os.rename(self._file(), self._new())

    def _rename_directory(self) -> None:
        os.rename(self._directory(), self._new())

    def _replace_directory(self) -> None:
        directory = self._directory()
        if directory == self._root:
            return
        subprocess.run(["rm", "-rf", directory], check=True)
        directory.mkdir()
        (directory / "fresh").write_text("fresh")

    def _link(self) -> None:
        os.link(self._file(), self._new())

    def _symlink(self) -> None:
        os.symlink(self._random.choice(["/etc/passwd", "nowhere", ".."]), self._new())

    def _attributes(self) -> None:
        path = self._random.choice(self._all())
        os.chown(path, self._random.randrange(3), self._random.randrange(3), follow_symlinks=False)
        os.chmod(path, self._random.choice([0o4755, 0o600, 0o777]))
        os.setxattr(path, f"user.x{self._random.randrange(3)}", b"%d" % self._random.randrange(99))
        with contextlib.suppress(OSError):
            os.removexattr(path, "user.x0")
        os.utime(path, ns=(0, self._random.randrange(1 << 60)))

    def _swap(self) -> None:
        one, other = self._directory(), self._directory()
        between = self._root / "between"
        os.rename(one, between)
        try:
            os.rename(other, one)
        except OSError:
            os.rename(between, one)
            raise
        os.rename(between, other)

    def _exchange_kind(self) -> None:
        path = self._random.choice(self._all())
        was_directory = path.is_dir()
        subprocess.run(["rm", "-rf", path], check=True)
        if was_directory:
            path.write_text("now a file")
        else:
            path.mkdir()

    def _fifo(self) -> None:
        os.mkfifo(self._new())

    def _sparse(self) -> None:
        with self._new().open("xb") as file:
            file.truncate(1 << 20)
            file.seek(300_000)
            file.write(b"data")


def make_image(root: Path) -> Path:
    image = root / "image"
    for name in ("a/b/c", "a/d", "e/f/g/h", "k"):
        (image / name).mkdir(parents=True)
        for number in range(3):
            (image / name / f"file{number}").write_text(f"{name} {number}")
    os.link(image / "a/d/file0", image / "k/linked")
    return image


def merged_copy(root: Path, layers: list[Path]) -> Path:
    """`layers`: the topmost first."""
    base = root / "merged" / "upper"
    base.parent.mkdir()
    copy_tree(layers[-1], base)
    merge(base, layers[-2::-1])
    assert sorted(os.listdir(base.parent)) == ["upper"]
    return base


@pytest.mark.parametrize("seed", range(SEEDS))
def test_merged_layers_look_the_same(needs_root: None, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    image = make_image(tmp_path)
    layers: list[Path] = []
    for number in range(LAYERS):
        upper = tmp_path / f"layer-{number}" / "upper"
        upper.mkdir(parents=True)
        with overlay([*layers, image], upper, tmp_path / "at") as root:
            vandal = Vandal(root, seed * 100 + number)
            for _ in range(STEPS):
                vandal.step()
        layers.insert(0, upper)
    with overlay([*layers, image], None, tmp_path / "at") as root:
        before = description(root)
    # Any run of them, also one that others lie on.
    start = chance.randrange(LAYERS - 1)
    end = chance.randrange(start + 2, LAYERS + 1)
    merged = merged_copy(tmp_path, layers[start:end])
    stack = [*layers[:start], merged, *layers[end:], image]
    with overlay(stack, None, tmp_path / "at") as root:
        after = description(root)
    assert after == before
    # And it can be written to.
    upper = tmp_path / "last" / "upper"
    upper.mkdir(parents=True)
    with overlay(stack, upper, tmp_path / "at") as root:
        for _ in range(STEPS):
            Vandal(root, seed).step()


def test_sparse_files_stay_sparse(needs_root: None, tmp_path: Path) -> None:
    layers = [tmp_path / name / "upper" for name in ("top", "base")]
    for layer in layers:
        layer.mkdir(parents=True)
    with (layers[0] / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"data")
    merged = merged_copy(tmp_path, layers)
    assert (merged / "sparse").stat().st_size == 1 << 30
    assert (merged / "sparse").stat().st_blocks * 512 < 1 << 20


def test_deep_trees(needs_root: None, tmp_path: Path) -> None:
    layers = [tmp_path / name / "upper" for name in ("top", "base")]
    for layer in layers:
        layer.mkdir(parents=True)
        at = os.open(layer, os.O_RDONLY)
        for _ in range(1200):  # deeper than recursion goes
            os.mkdir("d", dir_fd=at)
            deeper = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = deeper
        os.close(os.open(layer.parent.name, os.O_WRONLY | os.O_CREAT, dir_fd=at))
        os.close(at)
    merged = merged_copy(tmp_path, layers)
    at = os.open(merged, os.O_RDONLY)
    for _ in range(1200):
        deeper = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    assert sorted(os.listdir(at)) == ["base", "top"]
    os.close(at)
    subprocess.run(
        ["rm", "-rf", tmp_path / "merged", *(each.parent for each in layers)], check=True
    )
