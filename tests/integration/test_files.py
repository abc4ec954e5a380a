"""Files through the synchronous client, against a real daemon."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator

import pytest

from sandboxd.client import FileType, Sandbox, VenusError
from sandboxd.errors import Conflict, InvalidRequest, NotFound, SandboxGone, Unauthorized
from tests.support.daemon import DaemonProcess


def test_text_and_bytes_and_chunks(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/root/t", "zwölf €\n")
    assert files.read("/root/t") == "zwölf €\n"
    data = bytes(range(256)) * 9000
    files.write("/root/b", data)
    assert files.read("/root/b", "bytes") == data
    assert b"".join(files.read("/root/b", "stream")) == data
    with pytest.raises(UnicodeDecodeError):
        files.read("/root/b")


@pytest.mark.parametrize("kind", ["bytes", "file", "iterable"])
def test_every_kind_of_source(sandbox: Sandbox, kind: str) -> None:
    data = os.urandom(5_000_001)
    chunks = (data[start : start + 70_000] for start in range(0, len(data), 70_000))
    source = {"bytes": data, "file": io.BytesIO(data), "iterable": chunks}[kind]
    sandbox.files.write("/root/x", source)  # type: ignore[arg-type]
    assert sandbox.files.read("/root/x", "bytes") == data


def test_an_empty_file(sandbox: Sandbox) -> None:
    sandbox.files.write("/root/empty", b"")
    assert sandbox.files.read("/root/empty", "bytes") == b""
    assert sandbox.files.stat("/root/empty").size_bytes == 0


def test_a_cut_upload_never_becomes_a_file(sandbox: Sandbox) -> None:
    def source() -> Iterator[bytes]:
        yield bytes(300_000)
        raise RuntimeError("cut")

    sandbox.files.write("/root/kept", "old")
    for path in ("/root/kept", "/root/new"):
        with pytest.raises(RuntimeError, match="cut"):
            sandbox.files.write(path, source())
    assert sandbox.files.read("/root/kept") == "old"
    assert not sandbox.files.exists("/root/new")


def test_mode_owner_and_parents(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/root/deep/er/script", "#!/bin/sh\necho ran\n", mode=0o755)
    assert sandbox.commands.run(["/root/deep/er/script"]).stdout == "ran\n"
    files.write("/tmp/own", "x", user="1000:1000")
    entry = files.stat("/tmp/own")
    assert (entry.uid, entry.gid, entry.size_bytes) == (1000, 1000, 1)
    assert entry.permissions == "-rw-r--r--"


def test_listing(sandbox: Sandbox) -> None:
    sandbox.commands.run(
        "mkdir -p d/sub && echo x > d/f && ln -s f d/l && mkfifo d/p && echo > d/sub/g"
    )
    entries = {entry.name: entry for entry in sandbox.files.list("/root/d")}
    assert {name: entry.type for name, entry in entries.items()} == {
        "sub": FileType.DIRECTORY,
        "f": FileType.FILE,
        "l": FileType.SYMLINK,
        "p": FileType.FIFO,
    }
    assert entries["l"].target == "f"
    assert entries["f"].path == "/root/d/f"
    deep = {entry.path for entry in sandbox.files.list("/root/d", depth=2)}
    assert "/root/d/sub/g" in deep


def test_names_that_are_awkward(sandbox: Sandbox) -> None:
    for name in ("with space", "ümläut", "a&b=c?d#e%20", "-rf", "line\nbreak"):
        sandbox.files.write(f"/root/odd/{name}", name)
        assert sandbox.files.read(f"/root/odd/{name}") == name
    assert len(sandbox.files.list("/root/odd")) == 5


def test_directories_and_removal(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.make_dir("/root/a/b", mode=0o700)
    assert files.stat("/root/a/b").permissions == "drwx------"
    with pytest.raises(NotFound):
        files.make_dir("/root/x/y", parents=False)
    with pytest.raises(Conflict):
        files.remove("/root/a")
    files.remove("/root/a", recursive=True)
    assert not files.exists("/root/a")
    with pytest.raises(NotFound):
        files.remove("/root/a")


def test_a_removed_link_leaves_its_target(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir t && touch t/f && ln -s t l")
    sandbox.files.remove("/root/l", recursive=True)
    assert sandbox.files.exists("/root/t/f")


def test_renaming(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/root/a", "a")
    files.write("/root/b", "b")
    with pytest.raises(Conflict):
        files.rename("/root/a", "/root/b", replace=False)
    files.rename("/root/a", "/root/b")
    assert files.read("/root/b") == "a"
    assert not files.exists("/root/a")
    files.make_dir("/root/d/e")
    files.rename("/root/d", "/root/f", replace=False)
    assert files.exists("/root/f/e")
    with pytest.raises(NotFound):
        files.rename("/root/absent", "/root/x")
    with pytest.raises(Unauthorized):
        files.rename("/etc/passwd", "/etc/x", user="1000")
    with pytest.raises(InvalidRequest):  # another filesystem
        files.rename("/root/b", "/tmp/b")
    with pytest.raises(InvalidRequest):
        files.rename("/root/b", "relative")


def test_modes_and_owners(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/root/f", "x", mode=0o600, owner="nobody")
    entry = files.stat("/root/f")
    assert (entry.permissions, entry.uid, entry.gid) == ("-rw-------", 65534, 65534)
    # What is not named stays, in a file that is there.
    files.write("/root/f", "y")
    assert files.stat("/root/f") == dataclasses.replace(entry, mtime=files.stat("/root/f").mtime)
    files.write("/root/f", "y", mode=0o4755, owner=":5")
    entry = files.stat("/root/f")
    assert (entry.mode, entry.uid, entry.gid) == (0o4755, 65534, 5)
    files.chown("/root/f", "1000:games")
    files.chmod("/root/f", 0o640)
    entry = files.stat("/root/f")
    assert (entry.mode, entry.uid, entry.gid) == (0o640, 1000, 60)
    for owner in ("nosuchuser", "nobody:nosuchgroup", "a:b:c", "", "a/b"):
        with pytest.raises(InvalidRequest):
            files.chown("/root/f", owner)
    for call in (
        lambda: files.chown("/root/f", "root", user="1001"),
        lambda: files.write("/tmp/mine", "x", owner="root", user="1001"),
    ):
        with pytest.raises(Unauthorized):
            call()
    assert not files.exists("/tmp/mine")
    with pytest.raises(NotFound):
        files.chown("/root/absent", "0")


def test_a_link_and_what_it_leads_to(sandbox: Sandbox) -> None:
    sandbox.commands.run("echo 12 > f; ln -s f l; ln -s absent broken")
    assert sandbox.files.stat("/root/l").type is FileType.SYMLINK
    followed = sandbox.files.stat("/root/l", follow=True)
    assert (followed.type, followed.size_bytes, followed.target) == (FileType.FILE, 3, None)
    with pytest.raises(NotFound):
        sandbox.files.stat("/root/broken", follow=True)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/root/absent", NotFound),
        ("/root", InvalidRequest),
        ("relative", InvalidRequest),
        ("/etc/shadow", Unauthorized),
    ],
)
def test_errors_name_operation_and_path(
    sandbox: Sandbox, path: str, error: type[VenusError]
) -> None:
    with pytest.raises(error) as raised:
        sandbox.files.read(path, user="nobody" if "shadow" in path else None)
    assert path in str(raised.value)


def test_a_special_file_does_not_hang(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo /root/fifo")
    with pytest.raises(VenusError):
        sandbox.files.read("/root/fifo")


def test_exists_does_not_answer_for_a_sandbox_that_is_gone(daemon: DaemonProcess) -> None:
    sandbox = Sandbox.create(socket=daemon.socket)
    try:
        assert not sandbox.files.exists("/root/absent")
        assert sandbox.files.exists("/root")
        sandbox.kill()
        with pytest.raises((NotFound, SandboxGone), match=sandbox.sandbox_id):
            sandbox.files.exists("/root")
    finally:
        sandbox.close()
