"""Sandboxes that are paused at the end of their time, and what resumes them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox, SandboxException, SandboxState, TimeoutException

from tests.e2b.conftest import E2bDaemon, serving_e2b
from tests.kernel.test_daemon_recovery import eventually

LISTENER = """
import socket
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.recv(65536)
    connection.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nhello')
    connection.close()
"""


def is_paused(sandbox: Sandbox) -> Callable[[], bool]:
    return lambda: sandbox.get_info().state is SandboxState.PAUSED


def expire(sandbox: Sandbox) -> None:
    """Returns when it is paused."""
    sandbox.set_timeout(0)
    eventually(is_paused(sandbox), "it is not paused")


def time_left(sandbox: Sandbox) -> datetime.timedelta:
    return sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)


@pytest.fixture
def pausing() -> Iterator[Sandbox]:
    with Sandbox.create(lifecycle={"on_timeout": "pause"}) as sandbox:
        yield sandbox


@pytest.fixture
def resuming() -> Iterator[Sandbox]:
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    with Sandbox.create(timeout=1000, lifecycle=lifecycle) as sandbox:  # type: ignore[arg-type]
        yield sandbox


def test_its_time_ends_with_a_pause_and_connect_goes_on(pausing: Sandbox) -> None:
    handle = pausing.commands.run("read x; echo got $x", background=True, stdin=True)
    expire(pausing)
    assert time_left(pausing) > datetime.timedelta(days=20)
    assert pausing.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    assert not pausing.is_running()
    with pytest.raises(TimeoutException):
        pausing.commands.run("true")
    pausing.connect(timeout=500)
    assert pausing.is_running()
    assert time_left(pausing) <= datetime.timedelta(seconds=500)
    handle.send_stdin("it\n")
    assert handle.wait().stdout == "got it\n"
    # And again.
    expire(pausing)


def test_one_that_is_paused_by_hand_does_not_end_either(pausing: Sandbox) -> None:
    pausing.pause()
    assert time_left(pausing) > datetime.timedelta(days=20)
    assert pausing.get_info().state is SandboxState.PAUSED


def test_a_paused_one_can_be_killed(pausing: Sandbox) -> None:
    expire(pausing)
    assert pausing.kill()
    assert not pausing.kill()


def test_a_call_resumes_it(resuming: Sandbox) -> None:
    resuming.files.write("/root/f", "kept")
    expire(resuming)
    assert resuming.files.read("/root/f") == "kept"
    assert resuming.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
    left = time_left(resuming)
    assert datetime.timedelta(seconds=900) < left <= datetime.timedelta(seconds=1000)
    expire(resuming)
    assert resuming.commands.run("cat /root/f").stdout == "kept"


def test_a_request_to_a_port_resumes_it(e2b_daemon: E2bDaemon, resuming: Sandbox) -> None:
    resuming.files.write("/root/server.py", LISTENER)
    handle = resuming.commands.run("python3 /root/server.py", background=True, timeout=0)
    port = next(int(stdout) for stdout, _, _ in handle if stdout)
    expire(resuming)
    headers = {"Host": resuming.get_host(port)}
    answer = httpx.get(e2b_daemon.url, headers=headers, timeout=60)
    assert (answer.status_code, answer.text) == (200, "hello")


def test_who_may_not_call_it_resumes_nothing(e2b_daemon: E2bDaemon, resuming: Sandbox) -> None:
    expire(resuming)
    host = {"Host": resuming.get_host(49983)}
    for headers in (host, {**host, "X-Access-Token": "0" * 64}):
        assert httpx.get(f"{e2b_daemon.url}/files?path=/x", headers=headers).status_code == 502
    assert not resuming.is_running()
    assert resuming.get_info().state is SandboxState.PAUSED


def test_many_that_call_at_once(resuming: Sandbox) -> None:
    resuming.files.write("/root/f", "kept")
    expire(resuming)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: resuming.files.read("/root/f"), range(8))
    assert list(found) == ["kept"] * 8


def test_one_that_expires_while_there_is_no_daemon_is_paused(
    base_image_tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_e2b(f"venus-l{os.getpid()}", tmp_path, base_image_tar) as daemon:

        def restart() -> None:
            daemon.process.kill()
            daemon.process.start()
            monkeypatch.setenv("E2B_API_URL", daemon.url)
            monkeypatch.setenv("E2B_SANDBOX_URL", daemon.url)

        restart()
        sandbox = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause"})
        restart()
        again = Sandbox.connect(sandbox.sandbox_id, timeout=1)
        eventually(is_paused(again), "it is not paused")
        restart()
        [info] = Sandbox.list().next_items()
        assert (info.sandbox_id, info.state) == (sandbox.sandbox_id, SandboxState.PAUSED)
        assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo on").stdout == "on\n"
        assert Sandbox.kill(sandbox.sandbox_id)


def test_auto_resume_needs_the_pause() -> None:
    with pytest.raises(SandboxException):
        Sandbox.create(lifecycle={"on_timeout": "kill", "auto_resume": True})
