"""The daemon's HTTP without the client: for requests that the client would never send."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from sandboxd.protocol import FrameDecoder, FrameType, encode_frame, encode_json_frame


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the daemon's socket."""

    def __init__(self, path: str, timeout_s: float = 60.0) -> None:
        super().__init__("sandboxd", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(
    path: str, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and decoded body. `body`: bytes as they are, anything else as JSON."""
    connection = UnixConnection(path)
    try:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {} if isinstance(body, bytes | None) else {"Content-Type": "application/json"}
        connection.request(method, target, body=content, headers={**kind, **(headers or {})})
        response = connection.getresponse()
        raw = response.read()
        try:
            return response.status, json.loads(raw) if raw else None
        except ValueError:
            return response.status, raw
    finally:
        connection.close()


def exec_frames(
    path: str, sandbox_id: str, header: dict[str, Any], stdin: bytes = b""
) -> Iterator[tuple[FrameType, bytes]]:
    """Frames of one exec, in pieces as they arrive."""
    body = encode_json_frame(FrameType.HEADER, header)
    if stdin:
        body += encode_frame(FrameType.STDIN, stdin)
    connection = UnixConnection(path)
    try:
        connection.request("POST", f"/v1/sandboxes/{sandbox_id}/exec", body=body)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        decoder = FrameDecoder()
        while chunk := response.read1(1 << 16):
            for frame in decoder.feed(chunk):
                yield frame.type, frame.payload
    finally:
        connection.close()


def as_user(uid: int, gid: int, groups: list[int], call: Any) -> Any:
    """The result of `call()` in a forked child with these ids; it must be JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            with os.fdopen(writer, "w") as out:
                json.dump(call(), out)
            status = 0
        except BaseException as error:
            print(f"child as uid {uid}: {error!r}", file=sys.stderr)
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as result:
        text = result.read()
    _, status = os.waitpid(child, 0)
    assert status == 0 and text, f"the child as uid {uid} failed"
    return json.loads(text)
