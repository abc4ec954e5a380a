"""Connections of the client, against a peer that plays a script."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxd.client import ConnectionLost, VenusError
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._call import Call
from sandboxd.client._sync_transport import SyncTransport
from sandboxd.errors import InternalError, NotFound, OperationTimeout, TooLarge

CALL: Call[bytes] = Call("get thing", "it", "PUT", "/v1/thing", bytes, b"body")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"


class Peer:
    """Accepts connections one after the other; each gets the next script's answers.

    A script is a list of answers; each is sent when one request has come in whole. After its
    last answer the peer closes the connection, or keeps it when `keep` is set.
    """

    def __init__(self, path: str, scripts: list[list[bytes]], *, keep: bool = True) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._scripts = scripts
        self._keep = keep
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        kept = []
        for script in self._scripts:
            connection, _ = self._listener.accept()
            self.connections += 1
            for answer in script:
                self.requests.append(self._request(connection))
                connection.sendall(answer)
            if self._keep:
                kept.append(connection)
            else:
                connection.close()
        # Held until the test is over: a peer that closes is another case.
        self._listener.close()
        self.kept = kept

    @staticmethod
    def _request(connection: socket.socket) -> bytes:
        data = b""
        while not data.endswith((b"body", b"0\r\n\r\n")):
            data += connection.recv(65536)
        return data


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def transport(path: str) -> Iterator[SyncTransport]:
    transport = SyncTransport(path)
    yield transport
    transport.close()


@pytest.mark.parametrize("answer", [OK, CHUNKED])
def test_one_connection_carries_several_calls(
    path: str, transport: SyncTransport, answer: bytes
) -> None:
    peer = Peer(path, [[answer] * 3])
    assert [transport.call(CALL) for _ in range(3)] == [b"hi"] * 3
    assert peer.connections == 1
    assert peer.requests[0].startswith(b"PUT /v1/thing HTTP/1.1\r\nHost: ")
    assert peer.requests[0].endswith(b"Content-Length: 4\r\n\r\nbody")


def test_a_connection_that_the_daemon_closed_is_not_used_again(
    path: str, transport: SyncTransport
) -> None:
    peer = Peer(path, [[OK], [OK]], keep=False)
    assert transport.call(CALL) == b"hi"
    # Wait until the close has reached this side.
    [idle] = transport._idle
    assert idle._socket.recv(1) == b""
    assert transport.call(CALL) == b"hi"
    assert peer.connections == 2


def test_an_answer_that_was_not_read_to_its_end_costs_the_connection(
    path: str, transport: SyncTransport
) -> None:
    peer = Peer(path, [[CHUNKED[:-5]], [OK]])
    with transport.stream(CALL) as chunks:
        assert next(chunks) == b"hi"
    assert transport.call(CALL) == b"hi"
    assert peer.connections == 2


def test_a_streamed_body_is_chunked(path: str, transport: SyncTransport) -> None:
    peer = Peer(path, [[OK]])
    assert transport.call(CALL, content=iter([b"ab", b"cde"])) == b"hi"
    assert peer.requests[0].endswith(b"\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")


def test_a_source_that_fails_ends_the_connection_without_the_end_mark(
    path: str, transport: SyncTransport
) -> None:
    class SourceError(Exception):
        pass

    def source() -> Iterator[bytes]:
        yield b"half"
        raise SourceError

    listener = socket.socket(socket.AF_UNIX)
    with contextlib.closing(listener):
        listener.bind(path)
        listener.listen()
        with pytest.raises(SourceError):
            transport.call(CALL, content=source())
        connection, _ = listener.accept()
        with contextlib.closing(connection):
            received = b""
            while data := connection.recv(65536):
                received += data
    assert received.endswith(b"4\r\nhalf\r\n")


def test_an_early_answer_is_read_though_the_daemon_takes_no_more(
    path: str, transport: SyncTransport
) -> None:
    refusal = b'{"error":{"code":"too_large","message":"no"}}'
    answer = b"HTTP/1.1 413 X\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal)
    listener = socket.socket(socket.AF_UNIX)
    closed = threading.Event()

    def refuse() -> None:
        connection, _ = listener.accept()
        connection.recv(10)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_RD)
        closed.set()
        held.append(connection)

    def source() -> Iterator[bytes]:
        yield b"x"
        closed.wait(20)
        for _ in range(1000):
            yield bytes(100_000)

    held: list[socket.socket] = []
    with contextlib.closing(listener):
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(TooLarge, match="get thing it: no"):
            transport.call(CALL, content=source())
        thread.join()
    assert not transport._idle
    held[0].close()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"", ConnectionLost, "closed"),
        (OK[:-1], ConnectionLost, "closed"),
        (b"HTTP/1.1 200 OK\r\nConte", ConnectionLost, "closed"),
        (CHUNKED[:-5], ConnectionLost, "closed"),
        (b"garbage\r\n\r\n", ConnectionLost, "lost"),
        (OK + b"more", ConnectionLost, "lost"),
        (
            b'HTTP/1.1 404 X\r\nContent-Length: 30\r\n\r\n{"error":{"code":"not_found"}}',
            NotFound,
            "get thing it",
        ),
        (b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops", InternalError, "HTTP 500"),
    ],
)
def test_what_is_no_good_answer(
    path: str, transport: SyncTransport, answer: bytes, error: type[VenusError], words: str
) -> None:
    Peer(path, [[answer]], keep=False)
    with pytest.raises(error, match=words) as raised:
        transport.call(CALL)
    assert "get thing it" in str(raised.value)


def test_a_daemon_that_is_silent(path: str, transport: SyncTransport) -> None:
    peer = Peer(path, [[OK[:-1]]])
    with pytest.raises(OperationTimeout, match=r"silent for 0\.05 s"):
        transport.call(CALL, timeout_s=0.05)
    assert peer.connections == 1
    assert not transport._idle


def test_asyncio_keeps_and_drops_connections_by_the_same_rules(path: str) -> None:
    peer = Peer(
        path,
        [[OK, CHUNKED, CHUNKED[:-5]], [OK, b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", OK]],
    )

    async def chunks_of_a_source() -> AsyncIterator[bytes]:
        yield b"ab"

    async def scenario() -> None:
        transport = AsyncTransport(path)
        assert await transport.call(CALL) == b"hi"
        assert await transport.call(CALL, content=chunks_of_a_source()) == b"hi"
        async with transport.stream(CALL) as chunks:
            assert await anext(chunks) == b"hi"
        assert await transport.call(CALL) == b"hi"
        with pytest.raises(InternalError, match="HTTP 404"):
            await transport.call(CALL)
        assert await transport.call(CALL) == b"hi"
        await transport.close()

    asyncio.run(scenario())
    assert peer.connections == 2
    assert peer.requests[1].endswith(b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")


def test_asyncio_does_not_use_a_connection_of_another_loop(path: str) -> None:
    peer = Peer(path, [[OK], [OK]])
    transport = AsyncTransport(path)
    for _ in range(2):
        assert asyncio.run(transport.call(CALL)) == b"hi"
    assert peer.connections == 2


def test_asyncio_silence(path: str) -> None:
    peer = Peer(path, [[OK[:-1]]])

    async def scenario() -> None:
        with pytest.raises(OperationTimeout, match="silent"):
            await AsyncTransport(path).call(CALL, timeout_s=0.05)

    asyncio.run(scenario())
    assert peer.connections == 1


def test_cancelling_closes_the_connection(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.closing(listener):
        listener.bind(path)
        listener.listen()

        async def scenario() -> bytes:
            transport = AsyncTransport(path)
            call = asyncio.create_task(transport.call(CALL))
            loop = asyncio.get_running_loop()
            connection, _ = await loop.run_in_executor(None, listener.accept)
            with contextlib.closing(connection):
                while not (await loop.run_in_executor(None, connection.recv, 65536)).endswith(
                    b"body"
                ):
                    pass
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                return await loop.run_in_executor(None, connection.recv, 1)

        assert asyncio.run(scenario()) == b""
