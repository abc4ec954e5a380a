"""Whatever is wrong with a request, the answer names the operation, the object and the cause."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from sandboxd.api.app import MAX_JSON_BODY_BYTES, api_operations
from sandboxd.client import Sandbox
from sandboxd.errors import ERROR_CLASSES, SnapshotRefused
from sandboxd.protocol import FrameType, encode_frame, encode_json_frame
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

HERE = "/v1/sandboxes/{id}"


def header(**fields: Any) -> bytes:
    return encode_json_frame(FrameType.HEADER, fields)


def run_in(sandbox: Any) -> bytes:
    return header(command="x", sandbox=sandbox)


def raw_header(command: str) -> bytes:
    return encode_frame(FrameType.HEADER, f'{{"command": {command}}}'.encode())


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code", "named"),
    [
        ("GET", "/v1/nothing", None, 404, "not_found", "/v1/nothing"),
        ("PATCH", "/v1/sandboxes", None, 405, "invalid_request", "/v1/sandboxes"),
        ("GET", "/v1/sandboxes/sb-none", None, 404, "not_found", "sb-none"),
        ("DELETE", "/v1/sandboxes/..%2f..%2fetc", None, 404, "not_found", "etc"),
        ("POST", "/v1/sandboxes", b"{", 400, "invalid_request", ""),
        ("POST", "/v1/sandboxes", [], 400, "invalid_request", "body"),
        ("POST", "/v1/sandboxes", {"image": "../x"}, 400, "invalid_request", "image"),
        ("POST", "/v1/sandboxes", {"image": "absent"}, 404, "image_not_found", "absent"),
        ("POST", "/v1/sandboxes", {"imag": "x"}, 400, "invalid_request", "imag"),
        ("POST", "/v1/sandboxes", {"env": {"A=B": "c"}}, 400, "invalid_request", "env"),
        ("POST", "/v1/sandboxes", {"env": {"A": "x\0"}}, 400, "invalid_request", "env"),
        ("POST", "/v1/sandboxes", {"cwd": "x"}, 400, "invalid_request", "cwd"),
        ("POST", "/v1/sandboxes", {"user": "a/b"}, 400, "invalid_request", "user"),
        ("POST", "/v1/sandboxes", {"hostname": "-"}, 400, "invalid_request", "hostname"),
        ("POST", "/v1/sandboxes", {"hostname": "a.b/c"}, 400, "invalid_request", "hostname"),
        ("POST", "/v1/sandboxes", {"labels": {"": "x"}}, 400, "invalid_request", "labels"),
        (
            "POST",
            "/v1/sandboxes",
            {"labels": {str(n): "" for n in range(100)}},
            400,
            "invalid_request",
            "labels",
        ),
        ("POST", HERE + "/ttl", {}, 400, "invalid_request", "ttl_s"),
        ("POST", HERE + "/ttl", {"ttl_s": "soon"}, 400, "invalid_request", "ttl_s"),
        ("POST", HERE + "/exec", b"", 400, "invalid_request", "body"),
        ("POST", HERE + "/exec", b"GET / HTTP", 400, "invalid_request", "body"),
        ("POST", HERE + "/exec", header(argv=[]), 400, "invalid_request", "argv"),
        ("POST", HERE + "/exec", raw_header("[" * 100_000), 400, "invalid_request", "body"),
        ("POST", HERE + "/exec", raw_header("1" * 5000), 400, "invalid_request", "body"),
        ("POST", HERE + "/exec", header(argv=["\ud800"]), 400, "invalid_request", "sb-"),
        ("POST", HERE + "/exec", header(argv=["a"], user="\ud800"), 400, "invalid_request", "sb-"),
        (
            "POST",
            HERE + "/exec",
            header(command="x", timeout_s=1e9),
            400,
            "invalid_request",
            "timeout_s",
        ),
        (
            "POST",
            HERE + "/exec",
            header(command="x" * 300_000),
            400,
            "invalid_request",
            "sb-",
        ),
        ("POST", HERE + "/exec", header(command="x", user="no-one"), 422, "exec_failed", "sb-"),
        ("POST", HERE + "/exec", header(**{"\ud800": 1}), 400, "invalid_request", "\\ud800"),
        (
            "POST",
            HERE + "/exec",
            header(command="x", sandbox={}),
            400,
            "invalid_request",
            "sandbox",
        ),
        ("GET", "/v1/run", None, 405, "invalid_request", "/v1/run"),
        ("POST", "/v1/run", b"", 400, "invalid_request", "body"),
        ("POST", "/v1/run", {"command": "x"}, 400, "invalid_request", "body"),
        ("POST", "/v1/run", raw_header("[" * 100_000), 400, "invalid_request", "body"),
        ("POST", "/v1/run", header(), 400, "invalid_request", "argv"),
        ("POST", "/v1/run", header(command="x", sandbox=[]), 400, "invalid_request", "sandbox"),
        ("POST", "/v1/run", header(command="x", remove=1), 400, "invalid_request", "remove"),
        (
            "POST",
            "/v1/run",
            header(command="x", timeout_s=1e9),
            400,
            "invalid_request",
            "timeout_s",
        ),
        ("POST", "/v1/run", run_in({"imag": "x"}), 400, "invalid_request", "field sandbox.imag"),
        ("POST", "/v1/run", run_in({"\ud800": 1}), 400, "invalid_request", "field sandbox"),
        ("POST", "/v1/run", run_in({"user": "\ud800"}), 400, "invalid_request", "sandbox.user"),
        ("POST", "/v1/run", run_in({"image": 1}), 400, "invalid_request", "field sandbox.image"),
        ("POST", "/v1/run", run_in({"limits": {"pids": 0}}), 400, "invalid_request", "limits.pids"),
        ("POST", "/v1/run", run_in({"limits": {"pids": 1}}), 400, "invalid_request", "limits.pids"),
        (
            "POST",
            "/v1/run",
            run_in({"image": "base", "template": "tp-0000000000000000"}),
            400,
            "invalid_request",
            "field sandbox",
        ),
        ("POST", "/v1/run", run_in({"image": "absent"}), 404, "image_not_found", "absent"),
        ("POST", "/v1/run", run_in({"user": "no-one"}), 422, "exec_failed", "sb-"),
        ("POST", HERE + "/execs/99/signal", {"signal": 9}, 404, "not_found", "99"),
        ("POST", HERE + "/execs/1/signal", {"signal": 99}, 400, "invalid_request", "signal"),
        ("POST", HERE + "/execs/x/signal", {"signal": 9}, 400, "invalid_request", "exec_id"),
        ("POST", HERE + "/execs/99/stdin", b"x", 404, "not_found", "99"),
        ("GET", HERE + "/files", None, 400, "invalid_request", "path"),
        ("GET", HERE + "/files?path=x", None, 400, "invalid_request", "x"),
        ("GET", HERE + "/files?path=/%00", None, 400, "invalid_request", "/"),
        ("GET", HERE + "/files?path=/" + "x" * 5000, None, 400, "invalid_request", "xxx"),
        ("GET", HERE + "/files?path=/dev/tty", None, 400, "invalid_request", "/dev/tty"),
        ("GET", HERE + "/files?path=/none", None, 404, "not_found", "/none"),
        ("GET", HERE + "/files?path=/etc/passwd&user=no-one", None, 422, "exec_failed", "sb-"),
        ("PUT", HERE + "/files?path=/x&mode=999", b"", 400, "invalid_request", "mode"),
        ("GET", HERE + "/files/list?path=/&depth=0", None, 400, "invalid_request", "depth"),
        ("POST", HERE + "/files/mkdir", {"path": "x"}, 400, "invalid_request", "path"),
        ("POST", HERE + "/files/mkdir", {"path": "/etc"}, 409, "conflict", "/etc"),
        ("DELETE", "/v1/images/absent", None, 404, "image_not_found", "absent"),
        ("DELETE", "/v1/images/base", None, 409, "conflict", "base"),
        ("PUT", "/v1/images/UP", b"", 400, "invalid_request", "name"),
        ("PUT", "/v1/images/broken", b"not a tar", 400, "invalid_request", "tar"),
        ("POST", "/v1/images/x/import", {"path": "rel"}, 400, "invalid_request", "path"),
        (
            "POST",
            "/v1/images/x/build-base",
            {"suite": "a b"},
            400,
            "invalid_request",
            "suite",
        ),
    ],
)
def test_table(
    daemon: DaemonProcess,
    sandbox: Sandbox,
    method: str,
    target: str,
    body: Any,
    status: int,
    code: str,
    named: str,
) -> None:
    answer = request(daemon.socket, method, target.replace("{id}", sandbox.sandbox_id), body)
    assert answer[0] == status, answer
    error = answer[1]["error"]
    assert error["code"] == code
    assert named in error["object"], error
    assert error["operation"] and error["message"], error
    if status not in (404, 405, 409):
        assert error["cause"], error


def test_the_daemon_is_well_after_all_that(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo well").stdout == "well\n"
    assert "Traceback" not in daemon.log_path.read_text()


def test_a_json_body_is_bounded(daemon: DaemonProcess) -> None:
    body = json.dumps({"image": "x" * (MAX_JSON_BODY_BYTES + 10)}).encode()
    status, answer = request(daemon.socket, "POST", "/v1/sandboxes", body)
    assert (status, answer["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    "raw", [b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"POST /v1/sandboxes HTTP/1.1\r\n", b"x" * 100_000]
)
def test_what_is_no_http_harms_nobody(daemon: DaemonProcess, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(daemon.socket)
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert request(daemon.socket, "GET", "/v1/health")[0] == 200


def test_the_openapi_document_describes_every_route_and_error(daemon: DaemonProcess) -> None:
    status, document = request(daemon.socket, "GET", "/v1/openapi.json")
    assert status == 200
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    one = "/v1/sandboxes/{sandbox_id}"
    assert set(operations) == api_operations()
    reference = {"$ref": "#/components/schemas/ErrorBody"}
    known = {each.http_status for each in ERROR_CLASSES.values()}
    for name, operation in operations.items():
        assert operation["operationId"] and operation["responses"], name
        assert "422" not in operation["responses"] or "HTTPValidationError" not in json.dumps(
            operation
        ), name
        for status_text, answer in operation["responses"].items():
            if int(status_text) >= 400:
                assert int(status_text) in known, (name, status_text)
                assert answer["content"]["application/json"]["schema"] == reference, name
    for name in ("POST /v1/run", f"POST {one}/exec"):
        assert "application/vnd.venus.frames" in json.dumps(operations[name])


_LEASE_OF_A_NAME_THAT_IS_NO_TEXT = """
import fcntl, os, time
file = os.open(b"/tmp/\\xff", os.O_CREAT | os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
if os.fork() == 0:
    os.closerange(0, 3)
    time.sleep(1000)
"""


def test_a_refusal_names_what_is_no_text(sandbox: Sandbox) -> None:
    sandbox.commands.run(["python3", "-c", _LEASE_OF_A_NAME_THAT_IS_NO_TEXT])
    with pytest.raises(SnapshotRefused) as refused:
        sandbox.snapshot()
    assert r"/tmp/\xff" in str(refused.value.cause)
