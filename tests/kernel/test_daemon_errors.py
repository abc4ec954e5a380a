"""Each code of the table of errors comes to a client as its exception."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import ERROR_CLASSES, error_from_json
from tests.support.daemon import DaemonProcess, serving
from tests.support.raw_http import request

MIB = 1 << 20
INOTIFY = 'syscall(294, 0); $| = 1; print "up\\n"; sleep 999'


@pytest.fixture(scope="module")
def narrow(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """One on plain directories, which cannot limit a disk, with room for few leases."""
    settings = {"storage_backend": "plain", "max_leases_per_tenant": "1"}
    daemon = DaemonProcess(f"venus-n{os.getpid()}", tmp_path_factory.mktemp("venus"), settings)
    with serving(daemon, base_image_tar):
        yield daemon


def raised_by_raw(daemon: DaemonProcess, *arguments: object) -> None:
    status, body = request(daemon.socket, *arguments)  # type: ignore[arg-type]
    assert status >= 400
    raise error_from_json(body)


def build(daemon: DaemonProcess, recipe: dict[str, object]) -> None:
    template = Template.build(recipe, socket=daemon.socket)
    try:
        template.fork()
    finally:
        template.remove()
        template.close()


def two_leases(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket):
        for _ in range(2):
            status, body = request(daemon.socket, "POST", "/v1/leases", {})
            if status != 201:
                raise error_from_json(body)


def after_the_end(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.kill()
        sandbox.commands.run("true")


def without_a_state_file(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    (daemon.run_dir / "sandboxes" / sandbox.sandbox_id / "state.tmp").mkdir()
    sandbox.set_timeout(100)


def waiting(sandbox: Sandbox) -> None:
    sandbox.commands.wait(sandbox.commands.start("sleep 1000").exec_id, timeout=0.01)


def on_a_full_disk(sandbox: Sandbox) -> None:
    # In memory, half of the sandbox's memory.
    sandbox.files.write("/tmp/f", bytes(80 * MIB))


WAYS: dict[str, Callable[[DaemonProcess, Sandbox], object]] = {
    "invalid_request": lambda _, s: s.files.read("relative"),
    "unauthorized": lambda _, s: s.files.read("/etc/shadow", user="nobody"),
    "not_found": lambda _, s: s.files.read("/absent"),
    "image_not_found": lambda d, _: Sandbox.create("absent", socket=d.socket),
    "conflict": lambda _, s: s.resume(),
    "sandbox_gone": lambda d, _: after_the_end(d),
    "too_large": lambda d, _: raised_by_raw(d, "POST", "/v1/sandboxes", b" " * (5 * MIB)),
    "exec_failed": lambda _, s: s.commands.run(["/absent"]),
    "snapshot_refused": lambda _, s: refused_snapshot(s),
    "build_failed": lambda d, _: build(d, {"setup": [{"command": "false"}]}),
    "fork_failed": lambda d, _: build(d, {"on_fork": {"command": "false"}}),
    "limit_exceeded": lambda d, _: two_leases(d),
    "internal": without_a_state_file,
    "unreachable": lambda d, _: unreachable_registry(d),
    "unsupported": lambda d, _: Sandbox.create(disk_bytes=64 * MIB, socket=d.socket),
    "timeout": lambda _, s: waiting(s),
    "storage_full": lambda _, s: on_a_full_disk(s),
}


def unreachable_registry(daemon: DaemonProcess) -> None:
    with socket.socket() as closed, Daemon(daemon.socket) as client:
        closed.bind(("127.0.0.1", 0))
        list(client.pull_image(f"127.0.0.1:{closed.getsockname()[1]}/app:1", "app"))


def refused_snapshot(sandbox: Sandbox) -> None:
    with sandbox.commands.run(["perl", "-e", INOTIFY], True) as handle:
        next(iter(handle))
        sandbox.snapshot()


def test_every_code_has_its_way() -> None:
    assert set(WAYS) == set(ERROR_CLASSES)


@pytest.mark.parametrize("code", WAYS)
def test_each_code_comes_as_its_exception(narrow: DaemonProcess, code: str) -> None:
    with Sandbox.create(memory_bytes=128 * MIB, socket=narrow.socket) as sandbox:
        with pytest.raises(ERROR_CLASSES[code]) as raised:
            WAYS[code](narrow, sandbox)
        assert type(raised.value) is ERROR_CLASSES[code]
        # What was done, and to what; a cause where there is more to say.
        assert raised.value.operation
        assert raised.value.object or code == "too_large"
