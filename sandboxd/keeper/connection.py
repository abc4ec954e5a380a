"""A connection to pool-keeper: one request, one answer, with their descriptors."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from sandboxd.keeper.wire import (
    BATCH,
    MAX_ANSWER,
    Answer,
    Kind,
    WireError,
    decode_answer,
    encode_request,
)

SOCKET_NAME = "socket"
TIMEOUT_S = 20.0
"""How long to wait for any answer, and for a keeper that comes or goes."""


_RIGHTS_BYTES = socket.CMSG_SPACE(BATCH * array.array("i").itemsize)


class Connection:
    """Connected from the start. Everything may raise `OSError`; after a `TimeoutError`, a
    `ConnectionError` or a `WireError` only `close` makes sense."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SOCKET_NAME
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.connect(os.fspath(self._path))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """What was put over it and not committed is forgotten."""
        self._socket.close()

    def wait_until_closed(self) -> None:
        """Until the keeper is gone."""
        try:
            while self._socket.recv(MAX_ANSWER):
                pass
        except ConnectionError:
            pass

    def ask(
        self, kind: Kind, name: str = "", number: int = 0, descriptors: Sequence[int] = ()
    ) -> Answer:
        """The answer to a request that is answered without descriptors."""
        answer, received = self.ask_for_files(kind, name, number, descriptors)
        _close_all(received)
        return answer

    def ask_for_files(
        self, kind: Kind, name: str = "", number: int = 0, descriptors: Sequence[int] = ()
    ) -> tuple[Answer, list[int]]:
        """The answer, and descriptors that are the caller's; `OSError` with the keeper's errno."""
        request = encode_request(kind, name, number)
        if descriptors:
            socket.send_fds(self._socket, [request], descriptors)
        else:
            self._socket.send(request)
        # socket.recv_fds ignores its flags: descriptors would leak into every child.
        packet, ancillary, flags, _ = self._socket.recvmsg(
            MAX_ANSWER, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        received = _descriptors_of(ancillary)
        try:
            if not packet:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, "no room for its descriptors")
            answer = decode_answer(packet)
            if answer.kind != kind:
                raise WireError(f"an answer to request {answer.kind} instead of {kind}")
            if answer.errno:
                raise OSError(answer.errno, os.strerror(answer.errno))
        except BaseException:
            _close_all(received)
            raise
        return answer, received


def _descriptors_of(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    numbers = array.array("i")
    for _, _, payload in ancillary:
        numbers.frombytes(payload)
    return list(numbers)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
