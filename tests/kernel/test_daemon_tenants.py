"""Who may use the daemon, and what one tenant can learn of another."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess, serving
from tests.support.raw_http import as_user, exec_frames, request

GROUP = 54321
ALICE, BOB, EVE = 54001, 54002, 54003


@pytest.fixture(scope="module")
def shared(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon whose socket is open to a group."""
    process = DaemonProcess(
        f"venus-u{os.getpid()}", tmp_path_factory.mktemp("venus"), {"socket_group": str(GROUP)}
    )
    with serving(process, base_image_tar):
        yield process


def ask(
    daemon: DaemonProcess, uid: int, *arguments: Any, groups: tuple[int, ...] = (GROUP,)
) -> Any:
    return as_user(uid, uid, list(groups), lambda: request(daemon.socket, *arguments))


def test_the_socket_is_roots_and_the_groups(shared: DaemonProcess) -> None:
    status = os.stat(shared.socket)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, GROUP, 0o660)


def test_without_the_group_only_root_may_connect(daemon: DaemonProcess) -> None:
    status = os.stat(daemon.socket)
    assert status.st_uid == 0 and stat.S_IMODE(status.st_mode) in (0o600, 0o660)


def test_who_is_not_in_the_group_cannot_connect(shared: DaemonProcess) -> None:
    def attempt() -> str:
        try:
            request(shared.socket, "GET", "/v1/health")
        except PermissionError:
            return "refused"
        return "connected"

    assert as_user(EVE, EVE, [], attempt) == "refused"
    assert ask(shared, ALICE, "GET", "/v1/health")[0] == 200


def test_credentials_are_checked_even_if_the_file_is_open_to_all(shared: DaemonProcess) -> None:
    os.chmod(shared.socket, 0o666)
    try:
        for method, target in (
            ("GET", "/v1/health"),
            ("GET", "/v1/info"),
            ("GET", "/v1/images"),
            ("GET", "/v1/openapi.json"),
            ("GET", "/v1/no/such/route"),
            ("POST", "/v1/sandboxes"),
            ("POST", "/v1/sandboxes/sb-0/exec"),
            ("PUT", "/v1/sandboxes/sb-0/files?path=/x"),
        ):
            body = {} if method == "POST" else None
            status, answer = ask(shared, EVE, method, target, body, groups=())
            assert (status, answer["error"]["code"]) == (403, "unauthorized"), target
    finally:
        os.chmod(shared.socket, 0o660)


def test_a_tenant_sees_its_own_sandboxes_and_no_others(shared: DaemonProcess) -> None:
    mine = ask(shared, ALICE, "POST", "/v1/sandboxes", {})[1]
    assert mine["tenant_uid"] == ALICE
    path = f"/v1/sandboxes/{mine['id']}"
    everything: list[tuple[str, str, Any]] = [
        ("GET", path, None),
        ("DELETE", path, None),
        ("POST", f"{path}/ttl", {"ttl_s": 1}),
        ("GET", f"{path}/metrics", None),
        ("POST", f"{path}/exec", b""),
        ("POST", f"{path}/execs/1/stdin", b""),
        ("POST", f"{path}/execs/1/signal", {"signal": 9}),
        ("GET", f"{path}/files?path=/etc/passwd", None),
        ("PUT", f"{path}/files?path=/x", b""),
        ("DELETE", f"{path}/files?path=/etc/passwd", None),
        ("GET", f"{path}/files/list?path=/", None),
        ("GET", f"{path}/files/stat?path=/", None),
        ("POST", f"{path}/files/mkdir", {"path": "/x"}),
    ]
    unknown = ask(shared, BOB, "GET", "/v1/sandboxes/sb-ffffffffffffffff")[1]["error"]
    for method, target, body in everything:
        status, answer = ask(shared, BOB, method, target, body)
        assert (status, answer["error"]["code"]) == (404, "not_found"), target
        assert answer["error"]["message"] == unknown["message"]
    assert ask(shared, BOB, "GET", "/v1/sandboxes")[1]["sandboxes"] == []
    assert ask(shared, BOB, "GET", "/v1/info")[1]["sandboxes"] == 0
    assert [each["id"] for each in ask(shared, ALICE, "GET", "/v1/sandboxes")[1]["sandboxes"]] == [
        mine["id"]
    ]
    assert mine["id"] in [each.id for each in Sandbox.list(socket=shared.socket)]
    assert ask(shared, ALICE, "DELETE", path)[0] == 204
    # Nor does anybody else learn that it was there.
    assert ask(shared, BOB, "GET", path)[0] == 404
    assert ask(shared, ALICE, "GET", path)[0] == 410


def test_tenants_have_ids_of_their_own_on_the_host(shared: DaemonProcess) -> None:
    made = {uid: ask(shared, uid, "POST", "/v1/sandboxes", {})[1] for uid in (ALICE, BOB)}
    bases = {}
    for uid, sandbox in made.items():
        id_map = Path(f"/proc/{sandbox['init_pid']}/uid_map").read_text().split()
        assert id_map[0] == "0" and id_map[2] == "65536"
        bases[uid] = int(id_map[1])
        path = f"/v1/sandboxes/{sandbox['id']}"
        frames = as_user(
            uid,
            uid,
            [GROUP],
            lambda path=path: [
                data.decode()
                for _, data in exec_frames(shared.socket, path.split("/")[-1], {"command": "id -u"})
            ],
        )
        assert "0\n" in frames
        assert ask(shared, uid, "DELETE", path)[0] == 204
    assert abs(bases[ALICE] - bases[BOB]) >= 65536
    assert min(bases.values()) >= 65536


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PUT", "/v1/images/mine", b""),
        ("POST", "/v1/images/mine/import", {"path": "/etc"}),
        ("POST", "/v1/images/mine/build-base", {}),
        ("DELETE", "/v1/images/base", None),
    ],
)
def test_images_are_changed_by_root_alone(
    shared: DaemonProcess, method: str, target: str, body: Any
) -> None:
    status, answer = ask(shared, ALICE, method, target, body)
    assert (status, answer["error"]["code"]) == (403, "unauthorized")
    assert [each["name"] for each in ask(shared, ALICE, "GET", "/v1/images")[1]["images"]] == [
        "base"
    ]


def test_events_are_of_ones_own_sandboxes(shared: DaemonProcess) -> None:
    _, made = ask(shared, ALICE, "POST", "/v1/sandboxes", {})

    def seen(uid: int) -> set[str]:
        target = "/v1/events?after=0&wait=false"
        told = as_user(uid, uid, [GROUP], lambda: repr(request(shared.socket, "GET", target)))
        assert told.startswith("(200,")
        return set(re.findall(r"sb-[0-9a-f]{16}", told))

    assert made["id"] in seen(ALICE)
    assert made["id"] in seen(0)
    assert made["id"] not in seen(BOB)  # he may have had sandboxes of his own
    assert ask(shared, ALICE, "DELETE", f"/v1/sandboxes/{made['id']}")[0] == 204


def test_builds_are_their_tenants(shared: DaemonProcess) -> None:
    recipe = {"setup": [{"command": "echo of alice; exit 1"}]}
    assert ask(shared, ALICE, "POST", "/v1/templates", recipe)[0] == 422
    [build] = ask(shared, ALICE, "GET", "/v1/builds")[1]["builds"]
    place = f"/v1/builds/{build['id']}"
    assert "of alice" in ask(shared, ALICE, "GET", place)[1]["log"]
    assert ask(shared, BOB, "GET", "/v1/builds")[1]["builds"] == []
    assert ask(shared, BOB, "GET", place)[0] == 404
    assert request(shared.socket, "GET", place)[0] == 200
