"""The API over a bare socket, with prepared bytes: the daemon's time without the client's."""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Iterator
from typing import Any

from sandboxd.client import _calls
from sandboxd.client._call import Call
from sandboxd.client._http import encode_request
from sandboxd.protocol import FrameDecoder, FrameType


class RawConnection:
    """One keep-alive connection; answers are read with the least code that is correct."""

    def __init__(self, socket: str) -> None:
        self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self._socket.connect(socket)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, call: Call[Any]) -> None:
        self._socket.sendall(encode_request(call, streamed=False))

    def answer(self) -> Iterator[bytes]:
        """The body of the next answer, in the pieces in which it comes."""
        status = self._file.readline()
        if b" 2" not in status[:14]:
            raise RuntimeError(f"the daemon answered {status!r}: {self._file.read1(4096)!r}")
        headers = {}
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        if headers.get(b"transfer-encoding") != b"chunked":
            yield self._file.read(int(headers.get(b"content-length", b"0")))
            return
        while size := int(self._file.readline(), 16):
            yield self._file.read(size)
            self._file.readline()
        self._file.readline()

    def create(self, image: str) -> str:
        self.send(_calls.create_sandbox({}, image=image))
        sandbox_id: str = json.loads(b"".join(self.answer()))["id"]
        return sandbox_id

    def fork(self, template_id: str) -> str:
        self.send(_calls.create_sandbox({}, template=template_id))
        sandbox_id: str = json.loads(b"".join(self.answer()))["id"]
        return sandbox_id

    def kill(self, sandbox_id: str) -> None:
        self.send(_calls.kill_sandbox(sandbox_id))
        for _ in self.answer():
            pass

    def run(self, sandbox_id: str, argv: list[str]) -> Iterator[FrameType]:
        """Types of the frames of a command's answer, as they arrive."""
        self.send(_calls.run_command(sandbox_id, argv))
        decoder = FrameDecoder()
        for chunk in self.answer():
            for frame in decoder.feed(chunk):
                yield frame.type
