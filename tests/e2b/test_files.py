"""Files, through the SDK for threads."""

from __future__ import annotations

import io
import urllib.request
from collections.abc import Iterator

import pytest
from e2b import (
    FileNotFoundException,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    RateLimitException,
    Sandbox,
    SandboxException,
    TemplateException,
    WatchHandle,
)
from e2b.sandbox.filesystem.filesystem import WriteEntry

from sandboxd.e2b.watching import MAX_WATCHERS_PER_SANDBOX
from tests.e2b.conftest import ADD_USER, DISK_BYTES, E2bDaemon

MIB = 1 << 20


def test_text_and_bytes_come_back_as_they_were(sandbox: Sandbox) -> None:
    written = sandbox.files.write("/tmp/ü.txt", "text ü\n")
    assert (written.name, written.path, written.type) == ("ü.txt", "/tmp/ü.txt", FileType.FILE)
    assert sandbox.files.read("/tmp/ü.txt") == "text ü\n"
    content = bytes(range(256)) * 100
    sandbox.files.write("/tmp/b", content)
    assert sandbox.files.read("/tmp/b", format="bytes") == bytearray(content)
    sandbox.files.write("/tmp/b", b"")
    assert sandbox.files.read("/tmp/b", format="bytes") == bytearray()


def test_a_large_file_is_streamed_both_ways(sandbox: Sandbox) -> None:
    content = b"0123456789abcdef" * (16 * MIB // 16)

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(content), MIB):
            yield content[at : at + MIB]

    sandbox.files.write("/root/streamed", chunks())
    sandbox.files.write("/root/file", io.BytesIO(content))
    sandbox.files.write("/root/packed", content, gzip=True)
    sandbox.files.write("/root/form", content, use_octet_stream=False)
    sums = sandbox.commands.run("md5sum streamed file packed form | cut -d' ' -f1 | uniq").stdout
    assert len(sums.split()) == 1
    with sandbox.files.read("/root/streamed", format="stream") as stream:
        assert b"".join(stream) == content
    assert sandbox.files.read("/root/form", format="bytes", gzip=True) == content


def test_many_files_are_written_at_once(sandbox: Sandbox) -> None:
    entries = [WriteEntry(path=f"/root/many/{n}/f", data=f"content {n}") for n in range(20)]
    written = sandbox.files.write_files(entries)
    assert [each.path for each in written] == [f"/root/many/{n}/f" for n in range(20)]
    assert sandbox.files.read("many/19/f") == "content 19"
    assert sandbox.files.write_files([]) == []


def test_paths_begin_at_the_home_of_the_user(sandbox: Sandbox) -> None:
    sandbox.commands.run(ADD_USER)
    assert sandbox.files.write("a/b", "root's").path == "/root/a/b"
    assert sandbox.files.write("a/b", "user's", user="user").path == "/home/user/a/b"
    assert sandbox.files.read("~/a/b") == "root's"
    assert sandbox.files.read("/home/user/a/b", user="user") == "user's"
    assert sandbox.commands.run("stat -c %U:%G /home/user/a/b").stdout == "user:user\n"
    with pytest.raises(SandboxException):
        sandbox.files.read("/root/a/b", user="user")
    assert [each.path for each in sandbox.files.list("a", user="user")] == ["/home/user/a/b"]
    assert sandbox.files.exists("~") is True
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("~user")


def test_entries_tell_of_files(sandbox: Sandbox) -> None:
    sandbox.commands.run(
        "mkdir -p d/e; echo 12345 > d/f; chmod 640 d/f; ln -s f d/link; echo x > d/e/deep"
    )
    info = sandbox.files.get_info("d/f")
    assert (info.name, info.path, info.type) == ("f", "/root/d/f", FileType.FILE)
    assert (info.size, info.mode, info.permissions) == (6, 0o640, "rw-r-----")
    assert (info.owner, info.group, info.symlink_target) == ("root", "root", None)
    assert (
        abs(info.modified_time.timestamp() - float(sandbox.commands.run("stat -c %.Y d/f").stdout))
        < 0.001
    )
    link = sandbox.files.get_info("d/link")
    assert (link.type, link.symlink_target) == (FileType.SYMLINK, "f")
    assert sandbox.files.get_info("d").type is FileType.DIR
    found = {each.path: each.type for each in sandbox.files.list("d")}
    assert found == {
        "/root/d/e": FileType.DIR,
        "/root/d/f": FileType.FILE,
        "/root/d/link": FileType.SYMLINK,
    }
    deep = {each.path for each in sandbox.files.list("/root/d/", depth=2)}
    assert deep == {*found, "/root/d/e/deep"}


def test_what_is_not_there_is_told(sandbox: Sandbox) -> None:
    assert sandbox.files.exists("/etc/hostname") is True
    assert sandbox.files.exists("/no") is False
    for call in (sandbox.files.read, sandbox.files.list, sandbox.files.get_info):
        with pytest.raises(FileNotFoundException):
            call("/no/such")
    with pytest.raises(FileNotFoundException):
        sandbox.files.rename("/no/such", "/tmp/x")
    assert sandbox.files.exists("/tmp/x") is False
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/etc")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("/etc/hostname")


def test_directories_are_made_once(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("/root/a/b/c") is True
    assert sandbox.files.make_dir("/root/a/b/c") is False
    assert sandbox.files.make_dir("/root/a/b/d") is True
    sandbox.files.write("/root/f", "")
    with pytest.raises(InvalidArgumentException, match="no directory"):
        sandbox.files.make_dir("/root/f")


def test_files_and_directories_are_renamed(sandbox: Sandbox) -> None:
    sandbox.files.write("old/f", "content")
    moved = sandbox.files.rename("old/f", "new/place/g")
    assert moved.path == "/root/new/place/g"
    assert sandbox.files.read("new/place/g") == "content"
    sandbox.files.write("other", "replaced")
    sandbox.files.rename("new/place/g", "other")
    assert sandbox.files.read("other") == "content"
    assert sandbox.files.rename("new", "newer").type is FileType.DIR
    assert sandbox.files.exists("newer/place")


def test_files_and_directories_are_removed(sandbox: Sandbox) -> None:
    sandbox.files.write("d/e/f", "")
    sandbox.files.write("d/g", "")
    sandbox.files.remove("d/g")
    assert [each.name for each in sandbox.files.list("d")] == ["e"]
    sandbox.files.remove("d")
    assert sandbox.files.exists("d") is False
    sandbox.files.remove("d")


def test_a_full_disk_is_told(sandbox: Sandbox) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(2 * DISK_BYTES // MIB):
            yield bytes(MIB)

    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("/root/large", endless())
    assert sandbox.files.exists("/root/large") is False


def test_metadata_of_files_is_refused_as_by_an_older_agent(sandbox: Sandbox) -> None:
    with pytest.raises(TemplateException, match="metadata"):
        sandbox.files.write("/root/f", "", metadata={"a": "b"})


def test_a_signed_link_reads_and_writes_one_file(sandbox: Sandbox, e2b_daemon: E2bDaemon) -> None:
    # A link names no sandbox by a header, so it needs the host name.
    host = {"Host": sandbox.get_host(49983)}
    sandbox.files.write("/root/f", "content")

    def get(url: str) -> bytes:
        request = urllib.request.Request(url, headers=host)
        with urllib.request.urlopen(request, timeout=30) as answer:
            read: bytes = answer.read()
        return read

    url = sandbox.download_url("/root/f", use_signature_expiration=100)
    assert url.startswith(e2b_daemon.url)
    assert get(url) == b"content"
    assert get(sandbox.download_url("/root/f")) == b"content"
    for wrong in (
        url.replace("root%2Ff", "etc%2Fhostname").replace("/root/f", "/etc/hostname"),
        sandbox.download_url("/root/f", use_signature_expiration=-1),
        sandbox.upload_url("/root/f"),
        url.partition("&signature")[0],
    ):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(wrong)
    form = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nnew\r\n--B--\r\n'
    )
    upload = urllib.request.Request(
        sandbox.upload_url("/root/f"),
        data=form,
        headers={**host, "Content-Type": "multipart/form-data; boundary=B"},
    )
    with urllib.request.urlopen(upload, timeout=30) as answer:
        assert answer.status == 200
    assert sandbox.files.read("/root/f") == "new"


def gathered(watcher: WatchHandle, last: FilesystemEvent) -> list[FilesystemEvent]:
    """The events up to that one."""
    found: list[FilesystemEvent] = []
    while last not in found:
        found += watcher.get_new_events()
    return found


def test_a_directory_is_watched(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("seen/below")
    sandbox.files.write("seen/old", "")
    watcher = sandbox.files.watch_dir("seen")
    deep = sandbox.files.watch_dir("/root/seen", recursive=True)
    sandbox.commands.run(
        "cd seen; echo x > new; chmod 600 new; mv old moved; rm moved; touch below/deep; touch end"
    )
    found = gathered(watcher, FilesystemEvent("end", FilesystemEventType.CREATE))
    kinds = [(each.name, each.type) for each in found]
    for name, kind in (
        ("new", FilesystemEventType.CREATE),
        ("new", FilesystemEventType.WRITE),
        ("new", FilesystemEventType.CHMOD),
        ("old", FilesystemEventType.RENAME),
        ("moved", FilesystemEventType.CREATE),
        ("moved", FilesystemEventType.REMOVE),
    ):
        assert (name, kind) in kinds
    assert "below/deep" not in [each.name for each in found]
    found = gathered(deep, FilesystemEvent("end", FilesystemEventType.CREATE))
    assert ("below/deep", FilesystemEventType.CREATE) in [(e.name, e.type) for e in found]
    watcher.stop()
    deep.stop()
    with pytest.raises(SandboxException, match="stopped"):
        watcher.get_new_events()
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir("/no/such")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        sandbox.files.watch_dir("/etc/hostname")


def test_watchers_are_bounded_and_of_one_sandbox(sandbox: Sandbox) -> None:
    watchers = [sandbox.files.watch_dir("/root") for _ in range(MAX_WATCHERS_PER_SANDBOX)]
    with pytest.raises(RateLimitException):
        sandbox.files.watch_dir("/root")
    watchers.pop().stop()
    watchers.append(sandbox.files.watch_dir("/root"))
    with Sandbox.create() as other:
        foreign = other.files.watch_dir("/root")
        foreign._watcher_id = watchers[0]._watcher_id
        with pytest.raises(SandboxException, match="not found"):
            foreign.get_new_events()
    assert watchers[0].get_new_events() == []
