"""The log of a real daemon, as JSON: what happened to which sandbox, for whom; nothing forged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from sandboxd.client import Lease, Sandbox
from sandboxd.errors import LimitExceeded, NotFound
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving
from tests.support.unix_requests import unix_session

FORGED = 'x"}\n{"level":"error","message":"forged"}\n2030-01-01 00:00:00,000 ERROR sandboxd: forged'
MAX_SANDBOXES = 3
Line = dict[str, Any]


@pytest.fixture(scope="module")
def logging_daemon(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    settings = {
        "log_format": "json",
        "log_labels": "group, trajectory",
        "max_sandboxes": str(MAX_SANDBOXES),
    }
    daemon = DaemonProcess(f"venus-j{os.getpid()}", tmp_path_factory.mktemp("log"), settings)
    with serving(daemon, base_image_tar):
        yield daemon


def lines(daemon: DaemonProcess) -> list[Line]:
    """Every line is an object; none has a level or a logger that the daemon did not give it."""
    found = [json.loads(line) for line in daemon.log_path.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in found)
    assert not any(line["message"] == "forged" for line in found)
    return found


def told(daemon: DaemonProcess, **wanted: object) -> list[Line]:
    return [line for line in lines(daemon) if wanted.items() <= line.items()]


def wait_told(daemon: DaemonProcess, **wanted: object) -> Line:
    eventually(lambda: told(daemon, **wanted), f"no line with {wanted}")
    return told(daemon, **wanted)[-1]


def test_a_sandbox_is_traced_from_its_trajectory_through_its_life(
    logging_daemon: DaemonProcess,
) -> None:
    socket = logging_daemon.socket
    with Lease.create(60, socket=socket) as lease, Sandbox.create(socket=socket) as original:
        template = original.snapshot()
        labels = {"trajectory": "tr-1", "group": "g-1", "secret": "not asked for"}
        [fork] = template.fork(metadata=labels, lease=lease)
        hungry = ["python3", "-c", "x = bytearray(b'x' * (2 << 30))"]
        fork.commands.run(hungry, check=False)
        fork.kill()
        template.remove()
    common = {
        "sandbox": fork.sandbox_id,
        "tenant": 0,
        "lease": lease.lease_id,
        "template": template.template_id,
        "labels": {"trajectory": "tr-1", "group": "g-1"},
        "logger": "sandboxd.sandboxes",
    }
    ended = wait_told(logging_daemon, event="killed", **common)
    assert ended["reason"] == "destroyed" and ended["request"]
    assert wait_told(logging_daemon, event="created", **common)["image"] == "base"
    assert wait_told(logging_daemon, event="oom", **common)["level"] == "warning"
    captured = wait_told(logging_daemon, event="snapshot", sandbox=original.sandbox_id)
    assert captured["template"] == template.template_id
    assert "not asked for" not in logging_daemon.log_path.read_text()
    # Commands, of which there are very many, are not in it unless they are asked for.
    assert not told(logging_daemon, event="exec")


def test_a_request_is_found_by_its_name(logging_daemon: DaemonProcess) -> None:
    with unix_session(logging_daemon.socket) as session:
        url = "http://sandboxd/v1/sandboxes"
        made = session.post(url, json={}, headers={"x-request-id": "mine-1"}, timeout=60).json()
        session.delete(f"{url}/{made['id']}", headers={"x-request-id": "mine-2"}, timeout=60)
        gone = session.get(f"{url}/{made['id']}", headers={"x-request-id": "mine-3"}, timeout=60)
        unnamed = session.get(f"{url}/{made['id']}", timeout=60)
        refused = session.get(f"{url}/x", headers={"x-request-id": "not one"}, timeout=60)
    assert wait_told(logging_daemon, event="created", request="mine-1")["sandbox"] == made["id"]
    assert wait_told(logging_daemon, event="killed", request="mine-2")["sandbox"] == made["id"]
    assert gone.headers["x-request-id"] == "mine-3"
    assert unnamed.headers["x-request-id"] not in ("", refused.headers["x-request-id"])
    assert refused.headers["x-request-id"] != "not one"


def test_errors_carry_their_code_and_operation(logging_daemon: DaemonProcess) -> None:
    made = [Sandbox.create(socket=logging_daemon.socket) for _ in range(MAX_SANDBOXES)]
    try:
        with pytest.raises(LimitExceeded):
            Sandbox.create(socket=logging_daemon.socket)
    finally:
        for sandbox in made:
            sandbox.kill()
    line = wait_told(logging_daemon, event="failed", code="limit_exceeded")
    assert line["operation"] == "create sandbox" and line["tenant"] == 0
    assert line["level"] == "warning" and "max_sandboxes is 3" in line["message"]


def test_what_clients_choose_forges_nothing(logging_daemon: DaemonProcess) -> None:
    socket = logging_daemon.socket
    with Sandbox.create(socket=socket, metadata={"trajectory": FORGED}) as sandbox:
        sandbox.commands.run(["sh", "-c", 'printf "%s" "$0" >&2', FORGED])
    for asked in (FORGED, "x" * 5000):
        with pytest.raises((NotFound, requests.RequestException)):
            Sandbox.connect(asked, socket=socket)
    line = wait_told(logging_daemon, event="killed", sandbox=sandbox.sandbox_id)
    assert line["labels"] == {"trajectory": FORGED}


def test_mistakes_of_clients_are_no_lines(logging_daemon: DaemonProcess) -> None:
    before = len(lines(logging_daemon))
    url = "http://sandboxd/v1/sandboxes"
    with unix_session(logging_daemon.socket) as session:
        for _ in range(50):
            assert session.get(f"{url}/none", timeout=60).status_code == 404
            assert session.post(url, data="{", timeout=60).status_code == 400
    assert len(lines(logging_daemon)) == before
