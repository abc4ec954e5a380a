"""Whole directories up and down as tar archives, against a real daemon."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import FileType, Sandbox
from sandboxd.errors import InvalidRequest, StorageFull, Unauthorized, VenusError
from tests.support.daemon import DaemonProcess

MIB = 1 << 20
FILE = tarfile.REGTYPE


def packed(sandbox: Sandbox, path: str, **options: str) -> bytes:
    return b"".join(sandbox.files.read_dir(path, **options))  # type: ignore[arg-type]


def member(
    name: str, kind: bytes = FILE, content: bytes = b"", **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


_TREE = r"""
import os, socket
os.makedirs('/root/t/d/empty')
os.chdir('/root/t')
open('f', 'w').write('content')
os.chown('f', 5, 6)
os.chmod('f', 0o4751)
os.link('f', 'd/hard')
os.symlink('../f', 'd/soft')
os.mkfifo('pipe', 0o620)
os.setxattr('f', 'user.note', b'a\n=\0b')
os.setxattr('d', 'user.of', b'directory')
os.utime('f', ns=(1, 1234567890123456789))
os.utime('d/soft', ns=(1, 77), follow_symlinks=False)
with open('sparse', 'wb') as file:
    for place, text in ((3 << 20, b'middle'), (9 << 20, b'x')):
        file.seek(place)
        file.write(text)
    file.truncate(64 << 20)
open('hole', 'wb').truncate(1 << 20)
open('n' * 200, 'w').write('long')
open('ü\n☃', 'w').write('odd')
os.makedirs('/'.join(['deep' * 20] * 20))
os.symlink('y' * 300, 'far')
socket.socket(socket.AF_UNIX).bind('socket')
os.chmod('d', 0o2555)
os.utime('d', (9, 9))
os.utime('d/empty', (8, 8))
"""

_SHOW = r"""
import binascii, os, stat, sys
os.chdir(sys.argv[1])
for top, names, files in os.walk('.'):
    for path in sorted(os.path.join(top, name) for name in ['.'] + names + files):
        info = os.lstat(path)
        row = [path, oct(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns]
        if stat.S_ISREG(info.st_mode):
            row += [info.st_nlink, info.st_size, binascii.crc32(open(path, 'rb').read())]
            row += [info.st_size > 1 << 20 and info.st_blocks < 1024]
        if stat.S_ISLNK(info.st_mode):
            row += [os.readlink(path)]
        elif not stat.S_ISSOCK(info.st_mode):
            row += [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))]
        if not stat.S_ISSOCK(info.st_mode):
            print(row)
"""


def shown(sandbox: Sandbox, path: str) -> str:
    return sandbox.commands.run(["python3", "-c", _SHOW, path]).stdout


def test_a_tree_comes_back_as_it_was(sandbox: Sandbox) -> None:
    sandbox.commands.run(["python3", "-c", _TREE])
    content = packed(sandbox, "/root/t")
    # The holes are not in it.
    assert len(content) < 1 * MIB
    sandbox.files.write_dir("/root/again", content, owners=True)
    assert shown(sandbox, "/root/again") == shown(sandbox, "/root/t")


def test_others_read_what_is_written(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.commands.run(["python3", "-c", _TREE])
    with tarfile.open(fileobj=io.BytesIO(packed(sandbox, "/root/t"))) as tar:
        members = {each.name.removeprefix("./"): each for each in tar}
        tar.extractall(tmp_path, filter="tar")
    assert members["f"].mode == 0o4751 and (members["f"].uid, members["f"].gid) == (5, 6)
    assert members["f"].mtime == pytest.approx(1234567890.123456789)
    [first] = [members[name] for name in ("f", "d/hard") if members[name].isreg()]
    assert first.pax_headers["SCHILY.xattr.user.note"] == "a\n=\0b"
    assert "socket" not in members
    sparse = tmp_path / "sparse"
    assert sparse.stat().st_size == 64 * MIB
    assert sparse.read_bytes()[3 * MIB : 3 * MIB + 6] == b"middle"
    assert (tmp_path / ("n" * 200)).read_text() == "long"
    assert {members["f"].type, members["d/hard"].type} == {tarfile.REGTYPE, tarfile.LNKTYPE}
    assert os.readlink(tmp_path / "far") == "y" * 300


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_others(sandbox: Sandbox, format: int) -> None:
    name = "a/" + "b" * 60 + "/" + "c" * 80
    long = "l" * (90 if format == tarfile.USTAR_FORMAT else 300)
    content = archive(
        member("a", tarfile.DIRTYPE, mode=0o500, mtime=5),
        member(name, content=b"x" * 1000, mode=0o640, mtime=7, uid=1234567, uname="nobody"),
        member("a/link", tarfile.SYMTYPE, linkname=long),
        member("/absolute", content=b"is below"),
        member("node", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("./f", content=b"first"),
        member("f", content=b"second"),
        format=format,
    )
    sandbox.files.write_dir("/root/new/t", content)
    files = sandbox.files
    entry = files.stat(f"/root/new/t/{name}")
    assert (entry.mode, entry.mtime, entry.uid, entry.size_bytes) == (0o640, 7, 0, 1000)
    entry = files.stat("/root/new/t/a")
    assert (entry.mode, entry.mtime) == (0o500, 5)
    assert files.stat("/root/new/t/a/link").target == long
    assert files.read("/root/new/t/absolute") == "is below"
    assert files.read("/root/new/t/f") == "second"
    assert {each.name for each in files.list("/root/new/t")} == {"a", "absolute", "f"}


def test_the_users_rights_and_owners(sandbox: Sandbox) -> None:
    files = sandbox.files
    content = archive(member("f", content=b"x", uid=7, gid=8))
    files.write_dir("/tmp/mine", content, user="1000:1000")
    assert (files.stat("/tmp/mine/f").uid, files.stat("/tmp/mine").uid) == (1000, 1000)
    files.write_dir("/tmp/theirs", content, owners=True)
    assert (files.stat("/tmp/theirs/f").uid, files.stat("/tmp/theirs/f").gid) == (7, 8)
    with pytest.raises(Unauthorized, match="'f'"):
        files.write_dir("/tmp/mine", content, owners=True, user="1000")
    with pytest.raises(Unauthorized):
        files.write_dir("/etc", content, user="1000")
    with pytest.raises(Unauthorized):
        packed(sandbox, "/root", user="1000")


@pytest.mark.parametrize(
    "members",
    [
        [member("../out", content=b"x")],
        [member("a/../../out", content=b"x")],
        [member("up", tarfile.SYMTYPE, linkname=".."), member("up/out", content=b"x")],
        [member("etc", tarfile.SYMTYPE, linkname="/etc"), member("etc/out", content=b"x")],
        [member("h", tarfile.LNKTYPE, linkname="../secret")],
        [
            member("s", tarfile.SYMTYPE, linkname="/root"),
            member("h", tarfile.LNKTYPE, linkname="s/secret"),
        ],
        [member("p", tarfile.SYMTYPE, linkname="/proc/self/cwd"), member("p/out", content=b"x")],
        [member("d", tarfile.SYMTYPE, linkname="/etc"), member("d", tarfile.DIRTYPE, mode=0o777)],
        [member("", content=b"x")],
    ],
)
def test_nothing_leads_out_of_the_directory(
    sandbox: Sandbox, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    sandbox.files.write("/root/secret", "s")
    before = sandbox.files.stat("/etc")
    with pytest.raises(InvalidRequest):
        sandbox.files.write_dir("/root/in", archive(*members))
    assert {each.name for each in sandbox.files.list("/root") if each.name[0] != "."} == {
        "in",
        "secret",
    }
    assert sandbox.files.stat("/etc") == before
    assert not sandbox.files.exists("/etc/out")
    assert sandbox.files.read("/root/secret") == "s"


def test_links_that_stay_below_are_followed(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir -p t/usr/bin && ln -s usr/bin t/bin")
    content = archive(member("bin", tarfile.DIRTYPE), member("bin/tool", content=b"x"))
    sandbox.files.write_dir("/root/t", content)
    assert sandbox.files.read("/root/t/usr/bin/tool") == "x"
    assert sandbox.files.stat("/root/t/bin").type is FileType.SYMLINK


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:700],
        lambda content: b"\1" * 512,
        lambda content: content[:124] + b"99999999999\0" + content[136:],
        lambda content: content[:150] + b"777777" + content[156:],
    ],
)
def test_a_damaged_archive_is_refused(sandbox: Sandbox, damage: object) -> None:
    content = archive(member("f", content=b"x" * 5000), format=tarfile.USTAR_FORMAT)
    with pytest.raises(InvalidRequest, match="EBADMSG"):
        sandbox.files.write_dir("/root/in", damage(content))  # type: ignore[operator]
    assert sandbox.files.list("/root/in") == []


def test_lying_pax_records_are_refused(sandbox: Sandbox) -> None:
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s"}
    for records, content in (
        ({**sparse, "GNU.sparse.realsize": "10"}, b"1\n5\n10\n" + b"x" * 600),
        ({**sparse, "GNU.sparse.realsize": "10"}, b"99999999\n"),
        ({**sparse, "GNU.sparse.realsize": "10"}, b"-1\n"),
        ({**sparse, "GNU.sparse.realsize": "99999999999999999999"}, b"0\n"),
        ({"GNU.sparse.major": "0", "GNU.sparse.minor": "1"}, b"x"),
        ({"mtime": "nonsense"}, b""),
        ({"path": "p" * 5000}, b""),
        ({"size": "-5"}, b""),
    ):
        info, _ = member("f", content=content)
        info.pax_headers = records
        with pytest.raises(VenusError):
            sandbox.files.write_dir("/root/in", archive((info, content)))
        assert sandbox.files.list("/root/in") == [], records


def test_a_cut_upload_leaves_no_half_file(sandbox: Sandbox) -> None:
    content = archive(member("whole", content=b"w"), member("half", content=b"h" * MIB))

    def source() -> Iterator[bytes]:
        yield content[: MIB // 2]
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        sandbox.files.write_dir("/root/in", source())
    # The child that unpacks has ended when there is no further process but ps.
    while len(sandbox.commands.run("ps -e --no-headers").stdout.splitlines()) > 3:
        pass
    assert [each.name for each in sandbox.files.list("/root/in")] == ["whole"]


def test_other_filesystems_stay_closed(sandbox: Sandbox) -> None:
    sandbox.files.write("/tmp/f", "x")
    with tarfile.open(fileobj=io.BytesIO(packed(sandbox, "/"))) as tar:
        names = {each.name for each in tar}
    assert {"tmp", "proc", "etc/passwd"} <= names
    assert not {"tmp/f", "proc/self"} & names


def test_a_directory_that_is_none(sandbox: Sandbox) -> None:
    for path in ("/etc/passwd", "/absent", "relative"):
        with pytest.raises(VenusError):
            packed(sandbox, path)
    with pytest.raises(InvalidRequest):
        sandbox.files.write_dir("/etc/passwd", archive())


def test_a_full_disk_is_an_error_that_names_the_member(daemon: DaemonProcess) -> None:
    with Sandbox.create(disk_bytes=8 * MIB, socket=daemon.socket) as sandbox:
        content = archive(
            member("small", content=b"s"), member("big", content=os.urandom(16 * MIB))
        )
        with pytest.raises(StorageFull, match="'big'"):
            sandbox.files.write_dir("/root/in", content)
        assert [each.name for each in sandbox.files.list("/root/in")] == ["small"]
