"""A create takes its shortcut, or is handed on to the framework as it came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.api import routes_sandboxes
from sandboxd.api.app import SHORTCUTS
from sandboxd.api.context import ApiContext
from sandboxd.api.models import CreateSandboxRequest
from sandboxd.api.peer import Peer
from sandboxd.api.presentation import created
from sandboxd.api.shortcuts import Shortcuts
from sandboxd.errors import NotFound
from sandboxd.metrics.instruments import Instruments

JSON = (b"content-type", b"application/json")
TOO_LARGE = HTTPException(413, "the body is larger than that")


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Framework:
    """Notes what it would have received."""

    def __init__(self) -> None:
        self.received: list[Message | HTTPException] = []
        self.asked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked = True
        while True:
            try:
                message = await receive()
            except HTTPException as error:
                self.received.append(error)
                return
            self.received.append(message)
            if not message.get("more_body"):
                return


def answers(
    framework: Framework,
    method: str,
    path: str,
    comes: list[Message | HTTPException],
    header: tuple[bytes, bytes] = JSON,
) -> list[Message]:
    """What is sent to a client of which so much comes."""
    sent: list[Message] = []
    coming: Iterator[Message | HTTPException] = iter(comes)

    async def receive() -> Message:
        outcome = next(coming)
        if isinstance(outcome, HTTPException):
            raise outcome
        return outcome

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [header],
        "state": {"peer": Peer(1, 7, True), "has_left": lambda: False},
    }
    service = SimpleNamespace(instruments=Instruments())
    context = cast(ApiContext, SimpleNamespace(service=service))
    shortcuts = Shortcuts(framework, context, SHORTCUTS)
    asyncio.run(shortcuts(scope, receive, send))
    return sent


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, CreateSandboxRequest]]:
    """The creates that the daemon would make."""
    found = []

    async def create(_context: object, uid: int, body: CreateSandboxRequest, _left: object) -> Any:
        found.append((uid, body))
        return created(body)

    monkeypatch.setattr(routes_sandboxes, "created_sandbox", create)
    return found


def test_a_whole_body_takes_the_shortcut(
    asked_for: list[tuple[int, CreateSandboxRequest]],
) -> None:
    framework = Framework()
    body = {"image": "base", "limits": {"cpu_cores": 2}, "labels": {"a": "b"}}
    start, content = answers(framework, "POST", "/v1/sandboxes", [piece(json.dumps(body).encode())])
    assert asked_for == [(7, CreateSandboxRequest.model_validate(body))]
    assert (start["status"], framework.asked) == (201, False)
    assert json.loads(content["body"])["image"] == "base"


@pytest.mark.parametrize(
    ("comes", "header"),
    [
        ([piece(b'{"image":', more=True), piece(b'"base"}')], JSON),
        ([piece(b'{"imag": "base"}')], JSON),
        ([piece(b"{")], JSON),
        ([piece(b"[" * 100_000)], JSON),
        ([piece(b"")], JSON),
        ([{"type": "http.disconnect"}], JSON),
        ([TOO_LARGE], JSON),
        ([piece(b"{}", more=True), TOO_LARGE], JSON),
        ([piece(b"{}")], (b"content-type", b"application/json; charset=utf-8")),
        ([piece(b"{}")], (b"accept", b"application/json")),
    ],
    ids=[
        "in pieces", "another field", "cut", "too deep", "empty", "client gone", "too large",
        "too large later", "with a parameter", "no type",
    ],
)  # fmt: skip
def test_what_is_not_simply_right_is_handed_on_as_it_came(
    asked_for: list[tuple[int, CreateSandboxRequest]],
    comes: list[Message | HTTPException],
    header: tuple[bytes, bytes],
) -> None:
    framework = Framework()
    assert answers(framework, "POST", "/v1/sandboxes", comes, header) == []
    assert framework.received == comes
    assert asked_for == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sandboxes"),
        ("GET", "/v1/sandboxes/sb-1"),
        ("DELETE", "/v1/sandboxes/"),
        ("DELETE", "/v1/sandboxes/sb-1/files"),
        ("POST", "/v1/sandboxes/sb-1/execs"),
        ("POST", "/v1/runs"),
    ],
)
def test_other_requests_are_the_framework_s(method: str, path: str) -> None:
    framework = Framework()
    answers(framework, method, path, [piece(b"")])
    assert framework.asked


def test_an_error_of_a_shortcut_has_the_shape_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def destroy(_context: object, _uid: int, sandbox_id: str) -> None:
        raise NotFound("no such sandbox", operation="destroy sandbox", object=sandbox_id)

    async def fail(_context: object, _uid: int, sandbox_id: str) -> None:
        raise ZeroDivisionError("by zero")

    for what, status, code in ((destroy, 404, "not_found"), (fail, 500, "internal")):
        monkeypatch.setattr(routes_sandboxes, "destroy", what)
        start, content = answers(Framework(), "DELETE", "/v1/sandboxes/sb-1", [])
        error = json.loads(content["body"])["error"]
        assert (start["status"], error["code"]) == (status, code)
        assert (error["operation"], error["object"]) == ("destroy sandbox", "sb-1")
