"""The btrfs store: limits, accounting, survival of a kill, and nothing left behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.config import Config
from sandboxd.errors import InternalError
from sandboxd.storage import BtrfsStore, Collection, loop_device, mounts
from sandboxd.storage.btrfs import btrfs_missing

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
    pytest.mark.skipif(btrfs_missing() is not None, reason=str(btrfs_missing())),
]
MIB = 1 << 20


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state_dir=tmp_path / "state", storage_size_bytes=1 << 30)


@pytest.fixture
def store(config: Config) -> Iterator[BtrfsStore]:
    store = BtrfsStore(config)
    store.open()
    yield store
    store.close()


def write_until_refused(path: Path, most_bytes: int) -> tuple[int, int]:
    """Returns the bytes written and the errno that ended it (0 if nothing did)."""
    written = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while written < most_bytes:
            written += os.write(descriptor, b"x" * 65536)
    except OSError as error:
        return written, error.errno or 0
    finally:
        os.close(descriptor)
    return written, 0


def test_limit_stops_writes_of_one_volume_only(store: BtrfsStore) -> None:
    small = store.create(Collection.UPPERS, "small", 16 * MIB)
    other = store.create(Collection.UPPERS, "other", None)
    written, refusal = write_until_refused(small / "file", 64 * MIB)
    assert refusal == errno.EDQUOT
    assert 8 * MIB < written <= 16 * MIB
    assert write_until_refused(other / "file", 32 * MIB) == (32 * MIB, 0)
    (small / "file").unlink()  # room can be made again at the limit


def test_limit_bounds_the_number_of_files(store: BtrfsStore) -> None:
    path = store.create(Collection.UPPERS, "small", MIB)
    with pytest.raises(OSError, match="quota") as refused:
        for number in range(100_000):
            (path / str(number)).touch()
    assert refused.value.errno == errno.EDQUOT


def test_used_bytes_after_a_commit(store: BtrfsStore) -> None:
    path = store.create(Collection.UPPERS, "one", 64 * MIB)
    write_until_refused(path / "file", 8 * MIB)
    os.sync()
    used = store.used_bytes(Collection.UPPERS, "one")
    assert used is not None
    assert 8 * MIB <= used <= 9 * MIB


def test_removal_with_contents_is_idempotent(store: BtrfsStore) -> None:
    path = store.create(Collection.UPPERS, "one", 64 * MIB)
    (path / "directory").mkdir()
    (path / "directory" / "file").write_text("x")
    store.remove(Collection.UPPERS, "one")
    store.remove(Collection.UPPERS, "one")
    assert store.names(Collection.UPPERS) == set()


def test_an_open_file_does_not_keep_a_volume(store: BtrfsStore) -> None:
    path = store.create(Collection.UPPERS, "one", 64 * MIB)
    with open(path / "file", "w") as stream:
        store.remove(Collection.UPPERS, "one")
        assert store.names(Collection.UPPERS) == set()
        stream.write("still writable until closed")


def test_mounted_without_suid_and_devices_and_closed_to_others(
    store: BtrfsStore, config: Config
) -> None:
    flags = os.statvfs(config.storage_dir).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
    assert config.storage_dir.stat().st_mode & 0o777 == 0o700


def test_close_leaves_no_mount_and_no_loop_device(config: Config) -> None:
    store = BtrfsStore(config)
    store.open()
    store.create(Collection.UPPERS, "one", None)
    store.close()
    store.close()
    assert mounts.mounts_at(config.storage_dir) == []
    assert loop_device.find(store.file) is None
    store.open()
    assert store.names(Collection.UPPERS) == {"one"}
    store.close()


def numbers_of(volume: Path) -> list[int]:
    """Of everything in `upper`, and of that itself."""
    return [each.lstat().st_ino for each in (volume / "upper", *(volume / "upper").rglob("*"))]


def grown(store: BtrfsStore, name: str, files: int, above: str | None) -> Path:
    path = store.create(Collection.UPPERS, name, 64 * MIB, above)
    (path / "upper").mkdir()
    for number in range(files):
        (path / "upper" / f"{name}-{number}").write_text(name)
    return path


@pytest.mark.parametrize("files", [3, 300])
def test_no_two_files_of_a_stack_have_one_number(store: BtrfsStore, files: int) -> None:
    """To an overlay all of them are of one filesystem."""
    seen: list[int] = []
    layer = None
    for depth in range(4):
        path = grown(store, f"upper-{depth}", files, layer)
        assert len(list((path / "upper").iterdir())) == files
        for number in range(2):  # only the last of several layers of one volume is stood upon
            layer = f"layer-{depth}-{number}"
            store.freeze((Collection.UPPERS, f"upper-{depth}"), (Collection.LAYERS, layer))
        seen += numbers_of(store.path(Collection.LAYERS, layer))
    assert len(seen) == len(set(seen)) == 4 * (files + 1)
    # What a volume begins with counts for no limit.
    used = store.used_bytes(Collection.UPPERS, "upper-3")
    assert used is not None and used < 4 * MIB


def test_a_layer_of_a_full_volume_can_be_stood_upon(store: BtrfsStore) -> None:
    path = grown(store, "full", 3, None)
    assert write_until_refused(path / "upper" / "much", 128 * MIB)[1] == errno.EDQUOT
    with pytest.raises(OSError, match="quota"):
        for number in range(100_000):
            (path / "upper" / str(number)).touch()
    store.freeze((Collection.UPPERS, "full"), (Collection.LAYERS, "layer"))
    other = grown(store, "other", 10, "layer")
    assert not set(numbers_of(store.path(Collection.LAYERS, "layer"))) & set(numbers_of(other))


def open_and_die(config: Config) -> None:
    """Open the storage in a process that is killed with it open."""
    script = (
        "import os, signal, sys; from pathlib import Path; from sandboxd.config import Config;"
        "from sandboxd.storage import BtrfsStore;"
        "BtrfsStore(Config(state_dir=Path(sys.argv[1]), storage_size_bytes=1 << 30)).open();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    result = subprocess.run([sys.executable, "-c", script, config.state_dir], check=False)
    assert result.returncode == -9


def test_a_killed_owner_leaves_a_storage_that_is_taken_over(config: Config) -> None:
    open_and_die(config)
    store = BtrfsStore(config)
    device = loop_device.find(store.file)
    assert device is not None
    store.open()
    assert loop_device.find(store.file) == device
    assert len(mounts.mounts_at(config.storage_dir)) == 1
    store.close()
    assert loop_device.find(store.file) is None


def test_the_file_is_never_attached_twice(config: Config) -> None:
    open_and_die(config)
    # The mount goes from view while somebody (a sandbox's overlay) still has the filesystem.
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo ready; read -r line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        store = BtrfsStore(config)
        device = loop_device.find(store.file)
        mounts.unmount(config.storage_dir)
        store.open()
        attached = [
            entry
            for entry in Path("/sys/block").glob("loop*/loop/backing_file")
            if entry.read_text().strip() == str(store.file)
        ]
        assert len(attached) == 1
        assert loop_device.find(store.file) == device
        holder.communicate(b"\n")
    store.close()


def test_something_else_on_the_mount_point_is_an_error(config: Config) -> None:
    config.storage_dir.mkdir(parents=True)
    mounts.mount("tmpfs", config.storage_dir, "tmpfs", 0, "")
    try:
        with pytest.raises(InternalError, match="something else is mounted"):
            BtrfsStore(config).open()
    finally:
        mounts.unmount(config.storage_dir)
