"""The shortcuts of creating a sandbox and of destroying one (sandboxd.api.routes_sandboxes)."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive

from sandboxd.api import routes_sandboxes
from sandboxd.api.models import CreateSandboxRequest
from sandboxd.api.shortcuts import ShortRequest
from sandboxd.protocol import CONTENT_TYPE_JSON

_JSON_HEADER = (b"content-type", CONTENT_TYPE_JSON.encode())


async def create_sandbox(request: ShortRequest) -> Receive | None:
    """Answers a create whose body has come in one piece and fits its model."""
    if _JSON_HEADER not in request.scope["headers"]:
        return request.receive
    first = await _received(request.receive)
    body = _parsed(first)
    if body is None:
        return _again(first, request.receive)
    response = await routes_sandboxes.created_sandbox(
        request.context, request.tenant_uid, body, request.has_left
    )
    await response(request.scope, request.receive, request.send)
    return None


async def destroy_sandbox(request: ShortRequest) -> None:
    """Answers when nothing of it is left."""
    await routes_sandboxes.destroy(request.context, request.tenant_uid, request.sandbox_id)
    await Response(status_code=204)(request.scope, request.receive, request.send)


async def _received(receive: Receive) -> Message | HTTPException:
    try:
        return await receive()
    except HTTPException as error:  # the body is too large, or has not come in time
        return error


def _parsed(received: Message | HTTPException) -> CreateSandboxRequest | None:
    """None for what the framework shall refuse, or read on."""
    if isinstance(received, HTTPException) or received["type"] != "http.request":
        return None
    if received.get("more_body"):
        return None
    try:
        # As the framework does it; the model's own reader of JSON takes other values.
        return CreateSandboxRequest.model_validate(json.loads(received["body"]))
    except (ValueError, RecursionError):
        return None


def _again(first: Message | HTTPException, receive: Receive) -> Receive:
    """Receives once more what has been received, and then what comes."""
    earlier = [first]

    async def receive_again() -> Message:
        if not earlier:
            return await receive()
        outcome = earlier.pop()
        if isinstance(outcome, HTTPException):
            raise outcome
        return outcome

    return receive_again
