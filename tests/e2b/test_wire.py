"""What the SDK does not send: other codecs, and what should be refused."""

from __future__ import annotations

import http.client
import json
import struct
import urllib.parse
from collections.abc import Mapping

import pytest
from e2b import AuthenticationException, NotFoundException, Sandbox

from sandboxd.e2b.proto import filesystem_pb2, process_pb2
from tests.e2b.conftest import KEY, OTHER_KEY, TENANT_UID, E2bDaemon

Answer = tuple[int, bytes]


@pytest.fixture
def token(sandbox: Sandbox) -> str:
    found = sandbox._envd_access_token
    assert found is not None
    return found


def ask(
    daemon: E2bDaemon,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    where = urllib.parse.urlsplit(daemon.url)
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def of(sandbox: Sandbox, token: str, **more: str) -> dict[str, str]:
    """Headers of a request to a sandbox."""
    return {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": token, **more}


def envelopes(content: bytes) -> list[tuple[int, bytes]]:
    found = []
    while content:
        flags, length = struct.unpack_from(">BI", content)
        found.append((flags, content[5 : 5 + length]))
        content = content[5 + length :]
    return found


def test_protobuf_unary(e2b_daemon: E2bDaemon, sandbox: Sandbox, token: str) -> None:
    request = filesystem_pb2.StatRequest(path="/etc").SerializeToString()
    headers = of(sandbox, token, **{"Content-Type": "application/proto"})
    status, body = ask(e2b_daemon, "POST", "/filesystem.Filesystem/Stat", request, headers)
    assert status == 200
    entry = filesystem_pb2.StatResponse.FromString(body).entry
    assert (entry.path, entry.type) == ("/etc", filesystem_pb2.FILE_TYPE_DIRECTORY)


def test_protobuf_stream(e2b_daemon: E2bDaemon, sandbox: Sandbox, token: str) -> None:
    config = process_pb2.ProcessConfig(cmd="/bin/sh", args=["-c", "printf out; exit 5"])
    message = process_pb2.StartRequest(process=config, stdin=False).SerializeToString()
    status, body = ask(
        e2b_daemon,
        "POST",
        "/process.Process/Start",
        struct.pack(">BI", 0, len(message)) + message,
        of(sandbox, token, **{"Content-Type": "application/connect+proto"}),
    )
    assert status == 200
    *messages, (flags, end) = envelopes(body)
    assert (flags, json.loads(end)) == (2, {})
    events = [process_pb2.StartResponse.FromString(data).event for _, data in messages]
    kinds = [each.WhichOneof("event") for each in events]
    assert kinds == ["start", "data", "end"]
    assert events[1].data.stdout == b"out"
    assert (events[2].end.exit_code, events[2].end.exited) == (5, True)


@pytest.mark.parametrize(
    ("method", "path", "kind", "body", "status", "said"),
    [
        ("POST", "/process.Process/List", "application/json", b"[", 400, b"invalid_argument"),
        ("POST", "/process.Process/List", "application/json", b"\xff", 400, b"invalid_argument"),
        ("POST", "/process.Process/List", "application/proto", b"\xff", 400, b"invalid_argument"),
        ("POST", "/process.Process/List", "text/plain", b"{}", 415, b""),
        ("POST", "/process.Process/No", "application/json", b"{}", 501, b"unimplemented"),
        ("GET", "/process.Process/List", "application/json", b"", 405, b""),
        ("POST", "/process.Process/Start", "application/connect+json", b"", 200, b"no message"),
        ("POST", "/process.Process/Start", "application/connect+json", b"\0", 200, b"ends within"),
        (
            "POST",
            "/process.Process/Start",
            "application/connect+json",
            b"\0\xff\xff\xff\xff",
            200,
            b"larger than",
        ),
        ("GET", "/no", "", b"", 404, b"no such route"),
        ("PUT", "/files", "", b"", 405, b""),
        ("POST", "/files", "multipart/form-data", b"", 400, b"boundary"),
        ("POST", "/files", "multipart/form-data; boundary=B", b"--B\r\n", 400, b"cut"),
        ("POST", "/files", "application/octet-stream", b"x", 400, b"no path"),
    ],
)
def test_what_is_wrong_is_refused(
    e2b_daemon: E2bDaemon,
    sandbox: Sandbox,
    token: str,
    method: str,
    path: str,
    kind: str,
    body: bytes,
    status: int,
    said: bytes,
) -> None:
    headers = of(sandbox, token, **{"Content-Type": kind})
    answered, content = ask(e2b_daemon, method, path, body, headers)
    assert answered == status
    assert said in content
    assert sandbox.is_running()


def test_a_large_message_is_refused(e2b_daemon: E2bDaemon, sandbox: Sandbox, token: str) -> None:
    headers = of(sandbox, token, **{"Content-Type": "application/json"})
    body = b'{"x":"' + b"x" * (9 << 20) + b'"}'
    status, content = ask(e2b_daemon, "POST", "/process.Process/List", body, headers)
    assert (status, json.loads(content)["code"]) == (429, "resource_exhausted")


def test_only_the_token_of_a_sandbox_lets_into_it(
    e2b_daemon: E2bDaemon, sandbox: Sandbox, token: str
) -> None:
    path = "/process.Process/List"
    kind = {"Content-Type": "application/json"}
    assert ask(e2b_daemon, "POST", path, b"{}", of(sandbox, token, **kind))[0] == 200
    with Sandbox.create(api_key=OTHER_KEY) as foreign, Sandbox.create() as own:
        for other in (foreign._envd_access_token, own._envd_access_token, "", "é", "0" * 64, KEY):
            assert other is not None
            headers = of(sandbox, other, **kind)
            assert ask(e2b_daemon, "POST", path, b"{}", headers)[0] == 401
            assert ask(e2b_daemon, "GET", "/files?path=/etc/hostname", b"", headers)[0] == 401
        with_key = {**kind, "X-API-KEY": KEY, "E2b-Sandbox-Id": sandbox.sandbox_id}
        assert ask(e2b_daemon, "POST", path, b"{}", with_key)[0] == 401


def test_a_sandbox_is_also_named_by_the_host(
    e2b_daemon: E2bDaemon, sandbox: Sandbox, token: str
) -> None:
    headers = {"Host": sandbox.get_host(49983), "X-Access-Token": token}
    assert ask(e2b_daemon, "GET", "/files?path=/etc/hostname", b"", headers)[0] == 200
    headers["Host"] = sandbox.get_host(8080)
    status, content = ask(e2b_daemon, "GET", "/", b"", headers)
    assert (status, b"port is not open" in content) == (502, True)
    headers["Host"] = "49983-sb-0123456789abcdef.e2b.app"
    status, content = ask(e2b_daemon, "GET", "/health", b"", headers)
    assert (status, b"was not found" in content) == (502, True)


def test_the_control_plane_wants_a_key(e2b_daemon: E2bDaemon) -> None:
    assert ask(e2b_daemon, "GET", "/health")[0] == 204
    for headers in ({}, {"X-API-KEY": "wrong"}, {"Authorization": f"Bearer {KEY}"}):
        for path in ("/sandboxes", "/v2/sandboxes", "/no/such"):
            status, content = ask(e2b_daemon, "GET", path, b"", headers)
            assert (status, json.loads(content)["code"]) == (401, 401)
    status, content = ask(e2b_daemon, "GET", "/no/such", b"", {"X-API-KEY": KEY})
    assert (status, json.loads(content)["code"]) == (404, 404)
    key = {"X-API-KEY": KEY}
    assert ask(e2b_daemon, "POST", "/v2/sandboxes", b"{", key)[0] == 400
    assert ask(e2b_daemon, "POST", "/v2/sandboxes", b"x" * (2 << 20), key)[0] == 413


def test_keys_are_read_again_on_sighup(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    before = e2b_daemon.keys_file.read_text()
    new_key = "e2b_" + "9" * 40
    try:
        e2b_daemon.reload_keys(f"{new_key} {TENANT_UID}\n")
        with pytest.raises(AuthenticationException):
            sandbox.get_info()
        with pytest.raises(AuthenticationException):
            sandbox.commands.run("true")
        again = Sandbox.connect(sandbox.sandbox_id, api_key=new_key)
        assert again.commands.run("echo in").stdout == "in\n"
    finally:
        e2b_daemon.reload_keys(before)
    assert sandbox.commands.run("echo in").stdout == "in\n"
    with pytest.raises(NotFoundException):
        Sandbox.get_info("sb-0123456789abcdef")
