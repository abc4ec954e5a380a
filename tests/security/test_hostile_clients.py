"""Clients that speak slowly, too much, nonsense, or not at all: each is bounded and told so, and
all others are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandboxd.api.bounded_protocol import MAX_HEAD_BYTES
from sandboxd.client import Sandbox
from sandboxd.errors import ERROR_CLASSES
from sandboxd.protocol import FrameType, encode_json_frame
from tests.support.daemon import DaemonProcess, serving
from tests.support.raw_http import request

MIB = 1 << 20
REQUEST_TIMEOUT_S = 2
PATIENCE_S = 60.0
HEAD = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"
GOOD = HEAD + b"\r\n"


@pytest.fixture(scope="module")
def hasty(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(
        f"venus-h{os.getpid()}",
        tmp_path_factory.mktemp("hasty"),
        {"request_timeout_s": str(REQUEST_TIMEOUT_S)},
    )
    with serving(daemon, base_image_tar):
        yield daemon


@contextlib.contextmanager
def connected(daemon: DaemonProcess) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(daemon.socket)
        connection.settimeout(PATIENCE_S)
        yield connection


def rest_of(connection: socket.socket) -> bytes:
    """All that the daemon sends until it closes the connection."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return bytes(received)


def refusal_in(answer: bytes) -> dict[str, Any]:
    """The error, which must be in the documented shape, and agree with the status."""
    head, _, body = answer.partition(b"\r\n\r\n")
    error: dict[str, Any] = json.loads(body)["error"]
    assert int(head.split()[1]) == ERROR_CLASSES[error["code"]].http_status, answer
    assert b"connection: close" in head.lower(), answer
    return error


def wait_for_hangup(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    assert poll.poll(PATIENCE_S * 1000), "the daemon waits for its reader"


def is_well(daemon: DaemonProcess) -> None:
    assert request(daemon.socket, "GET", "/v1/health")[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GE", HEAD], ids=["nothing", "a method", "no end"])
def test_a_head_must_come_in_time(hasty: DaemonProcess, sent: bytes) -> None:
    with connected(hasty) as connection:
        connection.sendall(sent)
        assert refusal_in(rest_of(connection))["code"] == "timeout"
    is_well(hasty)


def test_a_head_that_trickles_must_come_in_time(hasty: DaemonProcess) -> None:
    with connected(hasty) as connection:
        connection.sendall(HEAD + b"X-Slow: ")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                connection.sendall(b"x")
                is_well(hasty)
        assert refusal_in(rest_of(connection))["code"] == "timeout"


def test_a_second_head_must_come_in_time(hasty: DaemonProcess) -> None:
    with connected(hasty) as connection:
        connection.sendall(GOOD + HEAD)
        answer = rest_of(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert refusal_in(answer[answer.rindex(b"HTTP/1.1") :])["code"] == "timeout"


@pytest.mark.parametrize("target", ["/v1/sandboxes", "/v1/run", "/v1/templates"])
def test_a_body_must_come_in_time(hasty: DaemonProcess, target: str) -> None:
    with connected(hasty) as connection:
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
        assert refusal_in(rest_of(connection))["code"] == "timeout"
    is_well(hasty)


def test_an_upload_may_take_its_time(hasty: DaemonProcess) -> None:
    with Sandbox.create(socket=hasty.socket) as sandbox, connected(hasty) as connection:
        target = f"/v1/sandboxes/{sandbox.sandbox_id}/files?path=/root/f"
        connection.sendall(
            f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n".encode()
        )
        connection.sendall(b"sl")
        with connected(hasty) as other:
            # The time that a head has is up when this one is refused.
            assert refusal_in(rest_of(other))["code"] == "timeout"
        connection.sendall(b"ow")
        assert connection.recv(4096).startswith(b"HTTP/1.1 204")
        assert sandbox.files.read("/root/f") == "slow"


@pytest.mark.parametrize(
    "large",
    [
        b"GET /" + b"x" * (MAX_HEAD_BYTES + 1),
        GOOD[:-2] + b"X: " + b"y" * MAX_HEAD_BYTES,
        GOOD[:-2] + b"a: b\r\n" * (MAX_HEAD_BYTES // 6 + 1),
    ],
    ids=["target", "header", "many headers"],
)
def test_a_large_head_is_refused(hasty: DaemonProcess, large: bytes) -> None:
    with connected(hasty) as connection:
        connection.sendall(large)
        assert refusal_in(rest_of(connection))["code"] == "too_large"
    is_well(hasty)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/9.9\r\n\r\n",
        b"POST /v1/run HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/run HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_one_shape(hasty: DaemonProcess, nonsense: bytes) -> None:
    with connected(hasty) as connection:
        connection.sendall(nonsense)
        assert refusal_in(rest_of(connection))["code"] == "invalid_request"
    is_well(hasty)


def test_nonsense_behind_a_request_leaves_its_answer_whole(hasty: DaemonProcess) -> None:
    with connected(hasty) as connection:
        connection.sendall(GOOD + b"\0\0\0\0" * 1000)
        answer = rest_of(connection)
    assert answer.count(b"HTTP/1.1") <= 2
    assert not answer or answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400")), answer[:200]
    is_well(hasty)


def test_many_requests_at_once_are_answered_in_their_order(hasty: DaemonProcess) -> None:
    count = 2000
    with connected(hasty) as connection:
        connection.sendall((GOOD + GOOD.replace(b"health", b"nothing")) * (count // 2))
        connection.sendall(HEAD + b"Connection: close\r\n\r\n")
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", rest_of(connection))
    assert statuses == [b"200", b"404"] * (count // 2) + [b"200"]


def test_a_client_that_half_closes_is_gone(hasty: DaemonProcess) -> None:
    """Nobody tells it from one that closes; so what it asked for is not kept."""
    body = encode_json_frame(FrameType.HEADER, {"command": "sleep 1000", "sandbox": {}})
    head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(5):
        with connected(hasty) as connection:
            connection.sendall(head.encode() + body)
            connection.shutdown(socket.SHUT_WR)
            rest_of(connection)
    with connected(hasty) as other:
        assert refusal_in(rest_of(other))["code"] == "timeout"
    running = [
        each
        for each in Sandbox.list(socket=hasty.socket)
        if Sandbox.connect(each.id, socket=hasty.socket).commands.list()
    ]
    assert not running


def test_connections_that_ask_for_nothing_are_closed(hasty: DaemonProcess) -> None:
    daemon = psutil.Process(hasty.pid)
    before = daemon.num_fds()
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(hasty)) for _ in range(3000)]
        is_well(hasty)
        for each in idle:
            assert refusal_in(rest_of(each))["code"] == "timeout"
        assert daemon.num_fds() <= before + 3
    is_well(hasty)


def test_answers_that_nobody_reads_are_bounded(hasty: DaemonProcess) -> None:
    with Sandbox.create(socket=hasty.socket) as sandbox, contextlib.ExitStack() as stack:
        sandbox.commands.run("mkdir /tmp/d && cd /tmp/d && seq -f '%0200g' 15000 | xargs touch")
        target = f"/v1/sandboxes/{sandbox.sandbox_id}/files/list?path=/tmp/d"
        asked = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        unread = [stack.enter_context(connected(hasty)) for _ in range(8)]
        for each in unread:
            each.sendall(asked)
        for each in unread:
            each.recv(1, socket.MSG_PEEK)
        is_well(hasty)
        with Sandbox.create(socket=hasty.socket) as other:
            assert other.commands.run("echo well").stdout == "well\n"
        # Cut, the daemon's end is closed, and what had been sent is all that can be read.
        for each in unread:
            wait_for_hangup(each)
            answer = rest_of(each)
            assert int(answer.lower().split(b"content-length: ")[1].split()[0]) > len(answer)


def test_nothing_of_that_is_in_the_log(hasty: DaemonProcess) -> None:
    """Whoever may connect could fill the disk with it."""
    log = hasty.log_path.read_text()
    assert "Traceback" not in log and "Invalid HTTP" not in log and len(log) < 20_000, log[-2000:]
