"""Ports of a sandbox by `get_host`: HTTP and WebSockets, as the SDK's users reach servers in it."""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import os
import re
import socket
import sysconfig
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from e2b import CommandHandle, Sandbox

from sandboxd.ports import MAX_CONNECTIONS_PER_SANDBOX
from tests.e2b.conftest import E2bDaemon

# Says its port once it listens, and answers each connection by `answer`, one after the other.
RAW_SERVER = """
import socket, sys
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
def answer(connection, head):
BODY
while True:
    connection, _ = server.accept()
    head = b''
    while b'\\r\\n\\r\\n' not in head:
        data = connection.recv(65536)
        if not data:
            break
        head += data
    try:
        answer(connection, head)
    except OSError:
        pass
    connection.close()
"""


def start(sandbox: Sandbox, command: str) -> tuple[CommandHandle, int]:
    """A server in the sandbox, whose first line of output is its port."""
    handle = sandbox.commands.run(command, background=True, timeout=0)
    for stdout, _, _ in handle:
        if stdout:
            return handle, int(stdout)
    raise AssertionError("it does not listen")


def start_raw(sandbox: Sandbox, body: str) -> int:
    sandbox.files.write("/root/server.py", RAW_SERVER.replace("BODY", body))
    return start(sandbox, "python3 /root/server.py")[1]


# What http.server needs of Python's library, of which the image `base` has the least.
MODULES = ("http", "html", "email", "urllib")


def add_modules(sandbox: Sandbox) -> None:
    """The modules of this Python in the sandbox, at /root/lib.zip."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [*library.glob("*.py"), *(f for name in MODULES for f in (library / name).glob("*.py"))]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for each in files:
            target.write(each, each.relative_to(library))
    sandbox.files.write("/root/lib.zip", archive.getvalue())


def serve_files(sandbox: Sandbox) -> int:
    """Python's own file server, of /root/www."""
    sandbox.files.make_dir("/root/www")
    add_modules(sandbox)
    envs = {"PYTHONPATH": "/root/lib.zip"}
    handle = sandbox.commands.run(
        "python3 -u -m http.server --directory /root/www 0", background=True, timeout=0, envs=envs
    )
    for stdout, _, _ in handle:
        if found := re.search(r"port (\d+)", stdout or ""):
            return int(found[1])
    raise AssertionError("it does not listen")


@contextmanager
def client_of(e2b_daemon: E2bDaemon, sandbox: Sandbox, port: int) -> Iterator[httpx.Client]:
    """As a browser would ask for the host, which a name server would lead to the listener."""
    headers = {"Host": sandbox.get_host(port)}
    with httpx.Client(base_url=e2b_daemon.url, headers=headers, timeout=60) as client:
        yield client


def connect(e2b_daemon: E2bDaemon) -> socket.socket:
    host, _, port = e2b_daemon.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(60)
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    content = b""
    while mark not in content:
        data = connection.recv(65536)
        assert data, content
        content += data
    return content


def test_a_web_server_in_a_sandbox(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = serve_files(sandbox)
    with client_of(e2b_daemon, sandbox, port) as client:
        answer = client.get("/")
        assert (answer.status_code, "Directory listing" in answer.text) == (200, True)


def test_a_port_that_is_closed(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    with client_of(e2b_daemon, sandbox, 9) as client:
        answer = client.get("/")
        assert (answer.status_code, answer.json()) == (
            502,
            {
                "code": 502,
                "message": "The sandbox is running but port is not open",
                "sandboxId": sandbox.sandbox_id,
                "port": 9,
            },
        )


def test_files_that_it_serves(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = serve_files(sandbox)
    content = os.urandom(4 << 20)
    sandbox.files.write("/root/www/large", content)
    sandbox.files.write("/root/www/a b", "name")
    with client_of(e2b_daemon, sandbox, port) as client:
        assert client.get("/large").content == content
        assert client.get("/a%20b?x=1").text == "name"
        head = client.head("/large")
        assert (head.headers["content-length"], head.content) == (str(len(content)), b"")
        assert client.get("/none").status_code == 404
        unchanged = client.get(
            "/large", headers={"If-Modified-Since": head.headers["last-modified"]}
        )
        assert unchanged.status_code == 304
        assert client.post("/large", content=b"x").status_code == 501
        # Without any name of a host, as the SDK names a sandbox.
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
        assert client.get("/a%20b", headers={**headers, "Host": "x"}).text == "name"


ECHO = """
    name, _, rest = head.partition(b'\\r\\n\\r\\n')
    connection.sendall(b'HTTP/1.1 100 Continue\\r\\n\\r\\n')
    connection.sendall(b'HTTP/1.1 200 OK\\r\\nConnection: keep-alive, x-mine\\r\\n')
    connection.sendall(b'X-Mine: 1\\r\\nX-Theirs: 2\\r\\n\\r\\n' + head)
    while not rest.endswith(b'0\\r\\n\\r\\n') and b'chunked' in name:
        data = connection.recv(65536)
        connection.sendall(data)
        rest += data
"""


def test_headers_of_one_connection_stay_there(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = start_raw(sandbox, ECHO)
    with client_of(e2b_daemon, sandbox, port) as client:
        headers = {"Connection": "x-drop", "X-Drop": "1", "TE": "x", "X-Keep": "2"}
        answer = client.get("/path?a=b", headers=headers)
        lines = answer.text.lower().split("\r\n")
        assert lines[0] == "get /path?a=b http/1.1"
        assert {"x-keep: 2", f"host: {sandbox.get_host(port)}", "connection: close"} <= set(lines)
        assert not any(line.startswith(("x-drop", "te:")) for line in lines)
        assert (answer.headers.get("x-mine"), answer.headers["x-theirs"]) == (None, "2")


def test_bodies_stream_both_ways(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    """Each piece is answered before the next one is sent."""
    port = start_raw(sandbox, ECHO)
    with connect(e2b_daemon) as connection:
        host = sandbox.get_host(port)
        connection.sendall(
            f"POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        read_until(connection, b"transfer-encoding: chunked")
        for piece in (b"first", b"second", b"third"):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            read_until(connection, piece)
        connection.sendall(b"0\r\n\r\n")
        read_until(connection, b"\r\n0\r\n\r\n")


WEBSOCKET = """
    import base64, hashlib
    key = dict(line.split(b': ', 1) for line in head.split(b'\\r\\n')[1:] if line)
    key = {name.lower(): value for name, value in key.items()}[b'sec-websocket-key']
    accept = hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest()
    connection.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n')
    connection.sendall(b'Connection: Upgrade\\r\\nSec-WebSocket-Accept: ')
    connection.sendall(base64.b64encode(accept) + b'\\r\\n\\r\\nhello')
    while data := connection.recv(65536):
        connection.sendall(data)
"""


def test_an_upgrade_to_websockets(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = start_raw(sandbox, WEBSOCKET)
    key = base64.b64encode(os.urandom(16))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    frames = os.urandom(1 << 20)
    with connect(e2b_daemon) as connection:
        connection.sendall(
            f"GET /chat HTTP/1.1\r\nHost: {sandbox.get_host(port)}\r\nUpgrade: websocket\r\n"
            f"Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key.decode()}\r\n\r\n".encode()
        )
        answer = read_until(connection, b"hello")
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Accept: " + accept in head
        assert rest == b"hello"
        sender = threading.Thread(target=connection.sendall, args=(frames,))
        sender.start()
        received = b""
        while len(received) < len(frames):
            received += connection.recv(65536)
        sender.join()
        assert received == frames
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_an_upgrade_that_the_server_passes_over(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    """The client's next request, which it has sent already, is one."""
    port = serve_files(sandbox)
    with connect(e2b_daemon) as connection:
        head = f"GET /none HTTP/1.1\r\nHost: {sandbox.get_host(port)}\r\n"
        upgrade = f"{head}Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        connection.sendall(f"{upgrade}{head}\r\n".encode())
        content = read_until(connection, b"</html>")
        content += b"" if content.count(b"</html>") == 2 else read_until(connection, b"</html>")
        assert content.count(b"HTTP/1.1 404 ") == 2


@pytest.mark.parametrize(
    "said",
    [
        "connection.sendall(b'HTTP/1.1 200 OK\\r\\n' + b'X: y\\r\\n' * 100000)",
        "connection.sendall(b'SSH-2.0-x\\r\\n\\r\\n')",
        "connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: -1\\r\\n\\r\\n')",
        "connection.sendall(b'HTTP/1.1 101 x\\r\\n\\r\\n')",
        "pass",
    ],
)
def test_a_server_that_speaks_no_http(e2b_daemon: E2bDaemon, sandbox: Sandbox, said: str) -> None:
    port = start_raw(sandbox, f"    {said}")
    with client_of(e2b_daemon, sandbox, port) as client:
        answer = client.get("/")
        assert (answer.status_code, answer.json()["code"]) == (502, 502)
        assert "gives no answer" in answer.json()["message"]


@pytest.mark.parametrize(
    "said",
    [
        "b'Content-Length: 10\\r\\n\\r\\nhalf'",
        "b'Transfer-Encoding: chunked\\r\\n\\r\\n5\\r\\nhello\\r\\nnonsense'",
    ],
)
def test_an_answer_that_breaks_off_is_cut(
    e2b_daemon: E2bDaemon, sandbox: Sandbox, said: str
) -> None:
    port = start_raw(sandbox, f"    connection.sendall(b'HTTP/1.1 200 OK\\r\\n' + {said})")
    with client_of(e2b_daemon, sandbox, port) as client:
        with pytest.raises(httpx.TransportError):
            client.get("/")
    # Nor does a sandbox write the daemon's log.
    assert "ASGI" not in e2b_daemon.process.log()


FLOOD = """
    connection.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n')
    while True:
        connection.sendall(b'x' * 65536)
"""


def test_a_flood_waits_for_its_reader(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = start_raw(sandbox, FLOOD)
    daemon = psutil.Process(e2b_daemon.process.pid)
    before = daemon.memory_info().rss
    with client_of(e2b_daemon, sandbox, port) as client, client.stream("GET", "/") as answer:
        chunks = answer.iter_raw(65536)
        for _ in range(64):
            assert next(chunks)
        with client_of(e2b_daemon, sandbox, 49983) as other:
            assert other.get("/health").status_code == 204
        assert daemon.memory_info().rss - before < 16 << 20


def test_connections_that_hang_are_counted_and_end_with_their_clients(
    e2b_daemon: E2bDaemon, sandbox: Sandbox
) -> None:
    port = start_raw(sandbox, "    connection.recv(1)")
    clients = []
    request = f"GET / HTTP/1.1\r\nHost: {sandbox.get_host(port)}\r\n\r\n".encode()
    for _ in range(100):
        clients.append(connect(e2b_daemon))
        clients[-1].sendall(request)
    for each in clients:
        each.close()
    # Were they not to end, there would soon be no room for more.
    for _ in range(MAX_CONNECTIONS_PER_SANDBOX):
        with connect(e2b_daemon) as client:
            client.sendall(request)
    with client_of(e2b_daemon, sandbox, 49983) as other:
        assert other.get("/health").status_code == 204


def test_a_fork_serves_by_a_host_of_its_own(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = serve_files(sandbox)
    sandbox.files.write("/root/www/who", "original")
    [forked] = sandbox.fork()
    assert isinstance(forked, Sandbox)
    forked.files.write("/root/www/who", "fork")
    for each, text in ((sandbox, "original"), (forked, "fork")):
        with client_of(e2b_daemon, each, port) as client:
            assert client.get("/who").text == text
    forked.kill()
    with client_of(e2b_daemon, forked, port) as client:
        answer = client.get("/who")
        assert (answer.status_code, answer.json()["message"]) == (
            502,
            "The sandbox was not found",
        )


def test_http_1_0(e2b_daemon: E2bDaemon, sandbox: Sandbox) -> None:
    port = serve_files(sandbox)
    sandbox.files.write("/root/www/x", "text")
    with connect(e2b_daemon) as connection:
        connection.sendall(f"GET /x HTTP/1.0\r\nHost: {sandbox.get_host(port)}\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert (response.status, response.read()) == (200, b"text")
