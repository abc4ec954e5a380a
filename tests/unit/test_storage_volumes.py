"""Volumes on plain directories, the choice of a store, and the reading of mountinfo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from sandboxd.errors import StorageFull, Unsupported
from sandboxd.storage import Collection, PlainStore, SplitStore, choose_store
from sandboxd.storage.mounts import parse_mountinfo
from sandboxd.storage.volumes import storage_errors

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Settings:
    state_dir: Path
    storage_backend: Literal["auto", "btrfs", "plain"] = "plain"
    storage_size_bytes: int = 1 << 30

    @property
    def storage_dir(self) -> Path:
        return self.state_dir / "storage"


@pytest.fixture
def store(tmp_path: Path) -> PlainStore:
    store = PlainStore(Settings(tmp_path))
    store.open()
    return store


def test_a_volume_appears_once_and_goes_twice(store: PlainStore) -> None:
    path = store.create(Collection.UPPERS, "one", None)
    (path / "file").write_text("x")
    with pytest.raises(FileExistsError):
        store.create(Collection.UPPERS, "one", None)
    assert store.names(Collection.UPPERS) == {"one"}
    store.remove(Collection.UPPERS, "one")
    store.remove(Collection.UPPERS, "one")
    assert store.names(Collection.UPPERS) == set()


def test_rename_never_replaces(store: PlainStore) -> None:
    store.create(Collection.INCOMING, "token", None)
    store.create(Collection.IMAGES, "base", None)
    with pytest.raises(FileExistsError):
        store.rename((Collection.INCOMING, "token"), (Collection.IMAGES, "base"))
    store.rename((Collection.INCOMING, "token"), (Collection.IMAGES, "other"))
    assert store.names(Collection.IMAGES) == {"base", "other"}


def test_a_disk_limit_is_refused_where_nothing_enforces_it(store: PlainStore) -> None:
    with pytest.raises(Unsupported, match="cannot limit a disk"):
        store.create(Collection.UPPERS, "one", 1 << 20)
    assert store.names(Collection.UPPERS) == set()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "a\0b", "x" * 200])
def test_names_are_one_plain_component(store: PlainStore, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        store.path(Collection.UPPERS, name)


def test_only_root_reaches_the_files(store: PlainStore) -> None:
    # Volumes hold set-user-id programs of images, with plain ids.
    assert store.path(Collection.IMAGES, "x").parents[1].stat().st_mode & 0o777 == 0o700


def test_choice_of_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.storage.btrfs_missing", lambda: "no btrfs here")
    assert isinstance(choose_store(Settings(tmp_path, "auto")), PlainStore)
    assert isinstance(choose_store(Settings(tmp_path, "btrfs")), SplitStore)
    assert isinstance(choose_store(Settings(tmp_path, "plain")), PlainStore)
    (tmp_path / "storage.btrfs").touch()
    # Images are in that file: plain directories beside it would hide them.
    assert isinstance(choose_store(Settings(tmp_path, "auto")), SplitStore)


def test_a_full_disk_is_told_apart() -> None:
    with pytest.raises(StorageFull, match="ENOSPC"), storage_errors("write", "object"):
        raise OSError(28, "No space left on device")


def test_mountinfo() -> None:
    text = (
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
        "41 31 0:38 /sub /mnt/with\\040space rw shared:1 master:2 - cgroup2 cgroup2 rw\n"
    )
    first, second = parse_mountinfo(text)
    assert (first.device, first.filesystem, first.source) == ("254:0", "ext4", "/dev/vda")
    assert (second.target, second.root) == ("/mnt/with space", "/sub")
    assert first.super_options == {"rw", "discard"}
    with pytest.raises(ValueError, match="not a line"):
        parse_mountinfo("nonsense")
