"""Files of a sandbox through a real daemon."""

from __future__ import annotations

import hashlib
import http.client
import socket
import time
from urllib.parse import quote

import psutil
import pytest

from sandboxd.client import Sandbox
from sandboxd.errors import Conflict, InvalidRequest, NotFound, Unauthorized, VenusError
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import UnixConnection, request

MIB = 1 << 20


def target(sandbox: Sandbox, path: str, **query: str) -> str:
    more = "".join(f"&{name}={quote(value, safe='')}" for name, value in query.items())
    return f"/v1/sandboxes/{sandbox.sandbox_id}/files?path={quote(path, safe='')}{more}"


@pytest.mark.parametrize("size", [0, 1, 65536, 3 * MIB + 5])
def test_bytes_come_back_as_they_were(sandbox: Sandbox, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    sandbox.files.write("/root/a/b/file", data)
    assert sandbox.files.read("/root/a/b/file", format="bytes") == data
    assert (
        sandbox.commands.run("sha256sum /root/a/b/file").stdout.split()[0]
        == hashlib.sha256(data).hexdigest()
    )


def test_a_file_of_128_mib_with_flat_daemon_memory(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    process = psutil.Process(daemon.pid)
    sandbox.files.write("/tmp/warm", b"x" * MIB)
    before = peak = process.memory_info().rss
    block, digest = hashlib.sha256(b"block").digest() * 8192, hashlib.sha256()

    def body() -> object:
        nonlocal peak
        for _ in range(128 * MIB // len(block)):
            digest.update(block)
            peak = max(peak, process.memory_info().rss)
            yield block

    sandbox.files.write("/root/big", body())  # type: ignore[arg-type]
    received = hashlib.sha256()
    for chunk in sandbox.files.read("/root/big", format="stream"):
        received.update(chunk)
        peak = max(peak, process.memory_info().rss)
    assert received.hexdigest() == digest.hexdigest()
    assert peak - before < 12 * MIB


def cut_upload(daemon: DaemonProcess, sandbox: Sandbox, path: str, *, chunked: bool) -> None:
    connection = UnixConnection(daemon.socket)
    connection.putrequest("PUT", target(sandbox, path))
    if chunked:
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        connection.send(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
    else:
        connection.putheader("Content-Length", str(2 << 20))
        connection.endheaders()
        connection.send(b"x" * (1 << 20))
    connection.sock.shutdown(socket.SHUT_WR)
    connection.close()


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cut_upload_never_becomes_a_file(
    daemon: DaemonProcess, sandbox: Sandbox, chunked: bool
) -> None:
    sandbox.files.write("/root/old", b"old")
    for path in ("/root/old", "/root/new"):
        cut_upload(daemon, sandbox, path, chunked=chunked)
    deadline = time.monotonic() + 10
    while sandbox.commands.run("ls -A /root | sort").stdout.split() != [
        name
        for name in sandbox.commands.run("ls -A /root | sort").stdout.split()
        if not name.startswith(".venus")
    ]:
        assert time.monotonic() < deadline, sandbox.commands.run("ls -lA /root").stdout
    assert sandbox.files.read("/root/old") == "old"
    assert not sandbox.files.exists("/root/new")


def test_mode_owner_and_rights_are_the_users(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir -m 777 /w; mkdir -m 700 /rootonly")
    sandbox.files.write("/w/f", b"x", user="1000", mode=0o640)
    entry = sandbox.files.stat("/w/f")
    assert (entry.uid, entry.gid, entry.mode, entry.type) == (1000, 0, 0o640, "file") or (
        entry.uid,
        entry.gid,
        entry.mode,
    ) == (1000, 1000, 0o640)
    for call in (
        lambda: sandbox.files.write("/rootonly/f", b"x", user="1000"),
        lambda: sandbox.files.read("/etc/shadow", user="1000"),
        lambda: sandbox.files.list("/rootonly", user="1000"),
        lambda: sandbox.files.remove("/etc/passwd", user="1000"),
    ):
        with pytest.raises(Unauthorized) as raised:
            call()
        assert "EACCES" in raised.value.cause


def test_an_existing_file_keeps_mode_and_owner(sandbox: Sandbox) -> None:
    sandbox.commands.run("echo a > /root/f; chmod 751 /root/f; chown 5:6 /root/f")
    sandbox.files.write("/root/f", b"b")
    entry = sandbox.files.stat("/root/f")
    assert (entry.mode, entry.uid, entry.gid) == (0o751, 5, 6)


def test_listing_and_types(sandbox: Sandbox) -> None:
    sandbox.commands.run(
        "mkdir -p /l/d/e; echo abc > /l/f; ln -s /etc/passwd /l/link; mkfifo /l/pipe; touch /l/d/x"
    )
    entries = {each.path: each for each in sandbox.files.list("/l")}
    assert {path: each.type.value for path, each in entries.items()} == {
        "/l/d": "directory",
        "/l/f": "file",
        "/l/link": "symlink",
        "/l/pipe": "fifo",
    }
    assert entries["/l/link"].target == "/etc/passwd"
    assert (entries["/l/f"].size_bytes, entries["/l/f"].name) == (4, "f")
    assert abs(entries["/l/f"].mtime - time.time()) < 600
    deep = {each.path for each in sandbox.files.list("/l", depth=3)}
    assert deep == {*entries, "/l/d/e", "/l/d/x"}
    assert sandbox.files.list("/l/d/e") == []
    assert sandbox.files.stat("/l/link").type == "symlink"


def test_directories_and_removal(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("/m/n/o")
    assert sandbox.files.stat("/m/n/o").type == "directory"
    sandbox.files.write("/m/n/f", b"x")
    with pytest.raises(Conflict, match="ENOTEMPTY"):
        request_remove(sandbox, "/m", recursive=False)
    sandbox.commands.run("ln -s /etc /m/n/etc")
    request_remove(sandbox, "/m", recursive=True)
    assert not sandbox.files.exists("/m")
    assert sandbox.files.exists("/etc/passwd")


def request_remove(sandbox: Sandbox, path: str, *, recursive: bool) -> None:
    sandbox.files.remove(path, recursive=recursive)


@pytest.mark.parametrize("name", ["with space", "ü☃", "a&b=c", "%41", "-n", "new\nline", "a+b"])
def test_odd_names(sandbox: Sandbox, name: str) -> None:
    sandbox.files.write(f"/root/{name}", b"x")
    assert sandbox.files.read(f"/root/{name}") == "x"
    assert [each.name for each in sandbox.files.list("/root") if not each.name.startswith(".")] == [
        name
    ]


def test_a_name_that_is_no_utf8_does_not_break_a_listing(sandbox: Sandbox) -> None:
    sandbox.commands.run(["python3", "-c", "open(b'/root/\\xff\\xfe', 'w')"])
    assert "\ufffd\ufffd" in [each.name for each in sandbox.files.list("/root")]


@pytest.mark.parametrize(
    ("call", "error", "cause"),
    [
        (lambda s: s.files.read("/no"), NotFound, "ENOENT"),
        (lambda s: s.files.stat("/no"), NotFound, "ENOENT"),
        (lambda s: s.files.list("/no"), NotFound, "ENOENT"),
        (lambda s: s.files.remove("/no"), NotFound, "ENOENT"),
        (lambda s: s.files.read("/etc"), InvalidRequest, "EISDIR"),
        (lambda s: s.files.list("/etc/passwd"), InvalidRequest, "ENOTDIR"),
        (lambda s: s.files.read("/etc/passwd/x"), InvalidRequest, "ENOTDIR"),
        (lambda s: s.files.write("/etc", b""), VenusError, "EISDIR"),
        (lambda s: s.files.write("/proc/x", b""), VenusError, "E"),
        (lambda s: s.files.read("relative"), InvalidRequest, "absolute"),
    ],
)
def test_errors_name_operation_path_and_cause(
    sandbox: Sandbox, call: object, error: type[VenusError], cause: str
) -> None:
    with pytest.raises(error) as raised:
        call(sandbox)  # type: ignore[operator]
    assert cause in raised.value.cause
    assert raised.value.operation and raised.value.object


def test_reading_a_device_or_a_pipe_is_refused_not_awaited(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo /root/pipe")
    for path in ("/root/pipe", "/dev/zero"):
        with pytest.raises(VenusError):
            sandbox.files.read(path)


def test_a_reader_that_leaves_leaves_nothing(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    sandbox.commands.run("head -c 50000000 /dev/zero > /root/z")
    connection = UnixConnection(daemon.socket)
    connection.request("GET", target(sandbox, "/root/z"))
    response: http.client.HTTPResponse = connection.getresponse()
    assert len(response.read1(100)) > 0
    connection.close()
    response.close()
    deadline = time.monotonic() + 10
    while len(sandbox.commands.run("ps -e --no-headers").stdout.splitlines()) > 3:
        assert time.monotonic() < deadline, sandbox.commands.run("ps -ef").stdout


def test_the_counter_of_commands_does_not_count_files(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    before = request(daemon.socket, "GET", "/v1/info")[1]["counters"]
    sandbox.files.write("/tmp/f", b"x")
    sandbox.commands.run("true")
    after = request(daemon.socket, "GET", "/v1/info")[1]["counters"]
    assert after["execs_started"] == before["execs_started"] + 1
    assert after["file_operations"] == before["file_operations"] + 1
