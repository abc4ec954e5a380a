"""Images from a registry: Debian's, on loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sandboxd.client import AsyncDaemon, Daemon
from sandboxd.errors import (
    Conflict,
    ImageNotFound,
    InvalidRequest,
    OperationTimeout,
    TooLarge,
    Unreachable,
    VenusError,
)
from tests.support.cli import Cli
from tests.support.daemon import DaemonProcess
from tests.support.image_archives import archive, file, layout, small_layer
from tests.support.registry import PASSWORD, USER, Registry, registry

CONFIG = {"Env": ["OF=registry"], "WorkingDir": "/srv", "User": "daemon"}


@pytest.fixture(scope="module")
def pushed(base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layout, to be pushed."""
    layers = [small_layer(base_image_tar), archive(file("srv/upper", b"upper\n"), mode=0o644)]
    return layout(layers, CONFIG).write(tmp_path_factory.mktemp("layout"))


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("open") / "registry") as running:
        yield running


@pytest.fixture(scope="module")
def closed_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("closed") / "registry", login=True) as running:
        yield running


def assert_nothing_left(daemon: DaemonProcess) -> None:
    assert list(daemon.state_dir.glob("*/incoming/*")) == []
    with Daemon(daemon.socket) as client:
        assert {each.name for each in client.list_images()} == {"base"}


def test_a_pulled_image_runs(daemon: DaemonProcess, open_registry: Registry, pushed: Path) -> None:
    reference = open_registry.push(pushed, "team/app:1.2")
    cli = Cli(daemon.socket)
    assert cli.text("image", "pull", "--insecure", reference) == "app-1.2"
    sandbox = cli.text("create", "--image", "app-1.2")
    said = cli.text("exec", sandbox, "sh", "-c", "echo $OF; pwd; id -un; cat upper")
    assert said == "registry\n/srv\ndaemon\nupper"
    cli("rm", sandbox)
    [info] = [i for i in json.loads(cli.text("image", "ls", "--json")) if i["name"] == "app-1.2"]
    assert info["source"] == f"registry {reference}"
    cli("image", "rm", "app-1.2")
    assert_nothing_left(daemon)


def test_certificates_are_verified_unless_told_otherwise(
    daemon: DaemonProcess, open_registry: Registry, pushed: Path
) -> None:
    """It speaks plain HTTP, which nobody vouches for."""
    reference = open_registry.push(pushed, "app:1")
    with Daemon(daemon.socket) as client:
        with pytest.raises(Unreachable, match="HTTPS"):
            list(client.pull_image(reference, "app"))
    assert_nothing_left(daemon)


def test_logins(
    daemon: DaemonProcess, closed_registry: Registry, pushed: Path, tmp_path: Path
) -> None:
    reference = closed_registry.push(pushed, "app:1", login=True)
    cli = Cli(daemon.socket)
    pull = ("image", "pull", "--insecure", reference, "app")
    assert b"refuses" in cli(*pull, code=1).stderr
    login = ("--username", USER, "--password-stdin")
    assert b"refuses" in cli(*pull, *login, stdin=b"wrong\n", code=1).stderr
    assert cli(*pull, *login, stdin=PASSWORD.encode() + b"\n").stdout == b"app\n"
    cli("image", "rm", "app")
    cli(*pull, "--username", USER, code=2)

    auths = tmp_path / "auth.json"
    auths.write_text(json.dumps({"auths": {closed_registry.host: {"auth": _pair()}}}))
    auths.chmod(0o644)
    assert b"chmod 600" in cli(*pull, "--auth-file", str(auths), code=1).stderr
    auths.chmod(0o600)
    assert cli.text(*pull, "--auth-file", str(auths)) == "app"
    cli("image", "rm", "app")
    auths.write_text(PASSWORD)
    said = cli(*pull, "--auth-file", str(auths), code=1).stderr
    assert b"no credentials" in said and PASSWORD.encode() not in said
    assert PASSWORD not in daemon.log() and _pair() not in daemon.log()
    assert_nothing_left(daemon)


def _pair() -> str:
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def test_what_is_not_there(daemon: DaemonProcess, open_registry: Registry, pushed: Path) -> None:
    open_registry.push(pushed, "app:1")
    with Daemon(daemon.socket) as client:
        for name in ("app:2", "other/app:1", f"app@sha256:{'0' * 64}"):
            with pytest.raises(ImageNotFound, match="no such image"):
                list(client.pull_image(f"{open_registry.host}/{name}", "app", insecure=True))
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{closed.getsockname()[1]}"
            with pytest.raises(Unreachable, match="cannot be reached"):
                list(client.pull_image(f"{nobody}/app:1", "app"))
        for wrong in ("--help", "UPPER", "a b", "dir:/etc", "", "x/../y", "host:port/x", "a\n"):
            with pytest.raises(InvalidRequest):
                list(client.pull_image(wrong, "app"))
    assert_nothing_left(daemon)


def test_async_and_a_name_that_is_taken(
    daemon: DaemonProcess, open_registry: Registry, pushed: Path
) -> None:
    reference = open_registry.push(pushed, "app:1")

    async def pull(name: str) -> list[str]:
        async with AsyncDaemon(daemon.socket) as client:
            return [line async for line in client.pull_image(reference, name, insecure=True)]

    assert any("Copying" in line for line in asyncio.run(pull("app")))
    with pytest.raises(Conflict, match="exists"):
        asyncio.run(pull("app"))
    with Daemon(daemon.socket) as client:
        client.remove_image("app")
    assert_nothing_left(daemon)


TLS_HANDSHAKE = b"\x16"


class SilentRegistry:
    """Takes requests over plain HTTP, and never answers them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connected = threading.Event()
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            # A TLS handshake that is not answered would be given up after seconds.
            if connection.recv(1) in (b"", TLS_HANDSHAKE):
                connection.close()
                continue
            self._connections.append(connection)
            self.connected.set()

    def close(self) -> None:
        self._listener.close()
        for each in self._connections:
            each.close()


@pytest.fixture
def silent() -> Iterator[SilentRegistry]:
    made = SilentRegistry()
    yield made
    made.close()


def _pullers(daemon: DaemonProcess) -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process(daemon.pid).children(recursive=True)
        if "skopeo" in each.name()
    ]


def test_what_a_pull_runs_has_no_rights_and_no_secret_in_sight(
    daemon: DaemonProcess, silent: SilentRegistry
) -> None:
    cli = Cli(daemon.socket)
    login = ("--username", USER, "--password-stdin")
    pull = ("image", "pull", "--insecure", f"{silent.host}/app:1", "app", *login)
    with cli.start(*pull, stdin=PASSWORD.encode()) as process:
        assert silent.connected.wait(60)
        [skopeo] = _pullers(daemon)
        assert set(skopeo.uids()) == {(1 << 30) - 1}
        status = Path(f"/proc/{skopeo.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
        assert "CapBnd:\t0000000000000000" in status
        seen = json.dumps([skopeo.cmdline(), skopeo.environ()])
        assert PASSWORD not in seen and _pair() not in seen
        # Whoever waited goes; then nobody needs it any more.
        process.kill()
        process.wait()
        psutil.wait_procs([skopeo], timeout=60)
        assert not skopeo.is_running()
    assert_settles_without_pull(daemon)


def assert_settles_without_pull(daemon: DaemonProcess) -> None:
    """The same name can be taken once what was given up is gone."""
    with Daemon(daemon.socket) as client:
        while True:
            try:
                client.import_image_tar("app", archive(file("x")))
                break
            except Conflict:
                continue
        client.remove_image("app")
    assert_nothing_left(daemon)


@contextlib.contextmanager
def running(daemon: DaemonProcess) -> Iterator[Daemon]:
    """It serves meanwhile, without any image."""
    try:
        daemon.start()
        with Daemon(daemon.socket) as client:
            yield client
    finally:
        daemon.remove()


def test_a_registry_that_does_not_answer(
    base_image_tar: Path, silent: SilentRegistry, tmp_path: Path
) -> None:
    hasty = DaemonProcess("venus-hasty", tmp_path / "state", {"pull_timeout_s": "1"})
    with running(hasty) as client:
        with pytest.raises(OperationTimeout, match="pull_timeout_s is 1"):
            list(client.pull_image(f"{silent.host}/app:1", "app", insecure=True))
        assert client.list_images() == []


def test_a_daemon_that_stops_waits_for_no_registry(
    base_image_tar: Path, silent: SilentRegistry, tmp_path: Path
) -> None:
    stopping = DaemonProcess("venus-pulls", tmp_path / "state")
    ends: list[Exception] = []

    def pull() -> None:
        with Daemon(stopping.socket) as client:
            try:
                list(client.pull_image(f"{silent.host}/app:1", "app", insecure=True))
            except VenusError as error:
                ends.append(error)

    puller = threading.Thread(target=pull)
    with running(stopping):
        puller.start()
        assert silent.connected.wait(60)
        stopping.stop()
    puller.join(60)
    assert len(ends) == 1


def test_a_killed_daemon_leaves_no_pull(
    base_image_tar: Path, silent: SilentRegistry, tmp_path: Path
) -> None:
    killed = DaemonProcess("venus-killed", tmp_path / "state")
    with running(killed):
        cli = Cli(killed.socket)
        with cli.start(
            "image", "pull", "--insecure", f"{silent.host}/app:1", "app", stdin=b""
        ) as process:
            assert silent.connected.wait(60)
            [skopeo] = _pullers(killed)
            killed.kill()
            process.wait()
        psutil.wait_procs([skopeo], timeout=60)
        assert not skopeo.is_running()
        killed.start()
        assert list(killed.state_dir.glob("*/incoming/*")) == []


def test_an_image_that_is_too_large(
    base_image_tar: Path, open_registry: Registry, tmp_path: Path
) -> None:
    big = layout([archive(file("big", os.urandom(6 << 20)))]).write(tmp_path / "layout")
    reference = open_registry.push(big, "big:1")
    small = DaemonProcess("venus-small", tmp_path / "state", {"max_image_bytes": str(4 << 20)})
    with running(small) as client:
        with pytest.raises(TooLarge, match="more than 4194304"):
            list(client.pull_image(reference, "big", insecure=True))
        assert list(small.state_dir.glob("*/incoming/*")) == []
