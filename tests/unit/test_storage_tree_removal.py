"""Removal of trees that a sandbox shaped: links, depth, hostile names, other devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.storage import tree_removal
from sandboxd.storage.tree_removal import remove_tree

pytestmark = pytest.mark.unit


def remove(path: Path) -> None:
    parent_fd = os.open(path.parent, os.O_RDONLY)
    try:
        remove_tree(parent_fd, path.name)
    finally:
        os.close(parent_fd)


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "link").symlink_to(outside)
    (tree / "link").symlink_to(outside / "precious")
    remove(tree)
    assert not tree.exists()
    assert (outside / "precious").read_text() == "keep"


def test_a_link_in_place_of_the_tree_is_removed_itself(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "tree").symlink_to(target)
    remove(tmp_path / "tree")
    assert target.is_dir()
    assert not os.path.lexists(tmp_path / "tree")


def test_depth_costs_no_descriptors_and_no_recursion(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    directory_fd = os.open(tree, os.O_RDONLY)
    for _ in range(3000):  # far beyond PATH_MAX, the recursion limit and most descriptor limits
        os.mkdir("d", dir_fd=directory_fd)
        below = os.open("d", os.O_RDONLY, dir_fd=directory_fd)
        os.close(directory_fd)
        directory_fd = below
    os.close(directory_fd)
    remove(tree)
    assert not tree.exists()


def test_names_that_the_removal_itself_would_use(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in (".removing-0", ".removing-1", "a"):
        (tree / name / "x" / "y").mkdir(parents=True)
        (tree / name / ".removing-0").mkdir()
    remove(tree)
    assert not tree.exists()


def test_another_device_inside_the_tree_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "mounted").mkdir(parents=True)
    (tree / "mounted" / "precious").write_text("keep")
    real_stat = os.stat

    def stat(path: str, **options: object) -> object:
        result = real_stat(path, **options)  # type: ignore[arg-type]
        if path != "mounted":
            return result
        fields = list(result)
        fields[2] = result.st_dev + 1
        return os.stat_result(fields)

    monkeypatch.setattr(tree_removal.os, "stat", stat)
    with pytest.raises(OSError, match="another filesystem"):
        remove(tree)
    monkeypatch.undo()
    assert (tree / "mounted" / "precious").read_text() == "keep"


def test_absence_is_no_error(tmp_path: Path) -> None:
    remove(tmp_path / "nothing")
