"""`cp -r` on this machine's side: what comes of a directory, and of an archive that means harm."""

from __future__ import annotations

import io
import itertools
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from sandboxd.cli.copied_tree import pack, unpack


def member(name: str, kind: bytes = tarfile.REGTYPE, **values: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in values.items():
        setattr(info, key, value)
    return info


def archive(*members: tarfile.TarInfo, content: bytes = b"new") -> Iterator[bytes]:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for each in (member(".", tarfile.DIRTYPE), *members):
            each.size = len(content) if each.isreg() else 0
            tar.addfile(each, io.BytesIO(content))
    whole = written.getvalue()
    return (whole[at : at + 777] for at in range(0, len(whole), 777))


def tree(directory: Path) -> dict[str, object]:
    return {
        str(path.relative_to(directory)): (
            oct(stat.S_IMODE(path.lstat().st_mode)),
            path.read_bytes() if path.is_file() else None,
        )
        for path in directory.rglob("*")
    }


def unexpected(name: str) -> None:
    raise AssertionError(f"skipped {name}")


def test_a_directory_comes_back_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d/empty").mkdir(parents=True)
    (source / "d/closed").mkdir(mode=0o500)
    (source / "a").write_bytes(bytes(600) + b"x")
    (source / "none").write_bytes(b"")
    (source / "d" / ("long" * 60)).write_bytes(b"y" * 512)
    (source / "d/run").write_bytes(b"#!")
    (source / "d/run").chmod(0o4750)
    os.symlink("/etc/passwd", source / "link")
    os.mkfifo(source / "d/pipe")
    skipped: list[str] = []
    chunks = pack(source, skipped.append, itself=True)
    unpack(chunks, tmp_path / "copy", unexpected)
    assert sorted(skipped) == [str(source / "d/pipe"), str(source / "link")]
    expected = tree(source)
    del expected["link"], expected["d/pipe"]
    expected["d/run"] = ("0o750", b"#!")
    assert tree(tmp_path / "copy") == expected


def test_what_is_no_file_is_skipped_and_told(tmp_path: Path) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    skipped: list[str] = []
    members = [member(str(index), kind, linkname="/etc") for index, kind in enumerate(kinds)]
    unpack(archive(*members), tmp_path / "copy", skipped.append)
    assert skipped == ["0", "1", "2", "3"]
    assert tree(tmp_path / "copy") == {}


def _up(_: Path) -> list[tarfile.TarInfo]:
    return [member("../outside/kept")]


def _up_from_below(_: Path) -> list[tarfile.TarInfo]:
    return [member("d", tarfile.DIRTYPE), member("d/../../outside/kept")]


def _by_a_link_that_is_there(copy: Path) -> list[tarfile.TarInfo]:
    copy.mkdir()
    (copy / "way").symlink_to("../outside")
    return [member("way/kept")]


def _directory_by_a_link_that_is_there(copy: Path) -> list[tarfile.TarInfo]:
    copy.mkdir()
    (copy / "way").symlink_to("../outside")
    return [member("way", tarfile.DIRTYPE, mode=0o777)]


def _hard_link_out(_: Path) -> list[tarfile.TarInfo]:
    return [member("own", tarfile.LNKTYPE, linkname="../outside/kept"), member("own")]


def _hard_link_to_what_did_not_come(copy: Path) -> list[tarfile.TarInfo]:
    copy.mkdir()
    (copy / "mine").symlink_to("../outside/kept")
    return [member("own", tarfile.LNKTYPE, linkname="mine"), member("own")]


def _nul(_: Path) -> list[tarfile.TarInfo]:
    return [member("f", pax_headers={"path": "a\0b"})]


@pytest.mark.parametrize(
    "attack",
    [
        _up,
        _up_from_below,
        _by_a_link_that_is_there,
        _directory_by_a_link_that_is_there,
        _hard_link_out,
        _hard_link_to_what_did_not_come,
        _nul,
    ],
)
def test_nothing_leads_out(tmp_path: Path, attack: Callable[[Path], list[tarfile.TarInfo]]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    before = tree(outside), outside.stat().st_mode
    members = attack(tmp_path / "copy")
    with pytest.raises(click.ClickException, match="refused"):
        unpack(archive(*members), tmp_path / "copy", unexpected)
    assert (tree(outside), outside.stat().st_mode) == before
    assert {each.name for each in tmp_path.iterdir()} <= {"outside", "copy"}


def test_an_absolute_name_is_one_below(tmp_path: Path) -> None:
    unpack(archive(member("/etc", tarfile.DIRTYPE), member("/etc/f")), tmp_path / "c", unexpected)
    assert set(tree(tmp_path / "c")) == {"etc", "etc/f"}


def test_a_link_in_the_way_of_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/f").symlink_to("../kept")
    unpack(archive(member("f")), tmp_path / "copy", unexpected)
    assert tree(tmp_path / "copy") == {"f": ("0o644", b"new")}
    assert (tmp_path / "kept").read_bytes() == b"kept"


def test_hard_links_stay_together(tmp_path: Path) -> None:
    again = member("again", tarfile.LNKTYPE, linkname="f")
    unpack(archive(member("f"), again), tmp_path / "copy", unexpected)
    assert (tmp_path / "copy/f").samefile(tmp_path / "copy/again")


def test_holes_stay_holes(tmp_path: Path) -> None:
    size = 1 << 40
    headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(size),
        "GNU.sparse.name": "holes",
    }
    content = f"2\n4096\n3\n{size}\n0\n".encode().ljust(512, b"\0") + b"new"
    holes = member("holes", pax_headers=headers)
    unpack(archive(holes, content=content), tmp_path / "copy", unexpected)
    info = (tmp_path / "copy/holes").stat()
    assert (info.st_size, info.st_blocks * 512 < 1 << 20) == (size, True)
    with (tmp_path / "copy/holes").open("rb") as file:
        assert file.read(4100) == bytes(4096) + b"new\0"


def test_what_is_cut_leaves_no_half_file(tmp_path: Path) -> None:
    chunks = itertools.islice(archive(member("f"), content=b"x" * 100_000), 60)
    with pytest.raises(click.ClickException):
        unpack(chunks, tmp_path / "copy", unexpected)
    assert tree(tmp_path / "copy") == {}


def test_an_error_after_the_archive_is_told(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield from archive(member("f"))
        raise ConnectionError

    with pytest.raises(ConnectionError):
        unpack(broken(), tmp_path / "copy", unexpected)
