"""Reading requests and sending answers over plain ASGI: bounded bodies, one shape of errors."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from sandboxd.e2b.refusals import error_body, http_status
from sandboxd.errors import InvalidRequest, TooLarge, VenusError

MAX_JSON_BODY_BYTES = 1 << 20
"""Of one request to the control plane."""
_MAX_QUERY_FIELDS = 100

BodyT = TypeVar("BodyT", bound=BaseModel)


class ClientGone(Exception):
    """The connection ended before the request did."""


class Request:
    """One HTTP request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._query: bytes = scope["query_string"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]

    def header(self, name: str) -> str:
        """Its first value; empty when it is absent."""
        wanted = name.lower().encode()
        for key, value in self._headers:
            if key == wanted:
                return value.decode("latin-1")
        return ""

    def header_names(self) -> list[str]:
        """In lower case."""
        return [key.decode("latin-1") for key, _ in self._headers]

    def query(self) -> dict[str, str]:
        """The last value of each field."""
        try:
            pairs = parse_qsl(
                self._query.decode("latin-1"),
                keep_blank_values=True,
                max_num_fields=_MAX_QUERY_FIELDS,
                errors="surrogateescape",
            )
        except ValueError as error:
            raise _wrong("query", str(error)) from None
        return dict(pairs)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; `ClientGone` when it does not come whole."""
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            if chunk := message.get("body", b""):
                yield chunk

    async def body(self, limit: int) -> bytes:
        """All of it; `TooLarge` above the limit."""
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > limit:
                raise TooLarge(
                    "the body is too large",
                    operation=f"{self.method} {self.path}"[:200],
                    cause=f"more than {limit} bytes",
                )
        return bytes(content)

    async def json_body(self, model: type[BodyT]) -> BodyT:
        """The body as that model; an empty one is an empty object."""
        content = await self.body(MAX_JSON_BODY_BYTES)
        try:
            return model.model_validate_json(content or b"{}")
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise _wrong(f"field {field}"[:200], first["msg"]) from None

    def basic_user(self) -> str:
        """The user's name of basic authorization, which E2B's clients name a sandbox's user by;
        empty when there is none."""
        scheme, _, encoded = self.header("authorization").partition(" ")
        if scheme.lower() != "basic":
            return ""
        try:
            return base64.b64decode(encoded, validate=True).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            raise _wrong("header Authorization", "not of the form Basic BASE64") from None


def _wrong(object: str, cause: str) -> InvalidRequest:
    return InvalidRequest("the request is refused", object=object, cause=cause)


async def answer(
    send: Send,
    status: int,
    body: bytes = b"",
    *,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
) -> None:
    """A whole answer."""
    fields = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    if status != 204:
        fields.append((b"content-length", str(len(body)).encode()))
        fields.append((b"content-type", content_type.encode()))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def answer_json(
    send: Send, status: int, value: object, headers: dict[str, str] | None = None
) -> None:
    """A whole answer of JSON."""
    await answer(send, status, json.dumps(value).encode(), headers=headers)


async def refuse(send: Send, error: VenusError) -> None:
    """The answer to a request that failed."""
    status = http_status(error)
    await answer(send, status, error_body(status, str(error)))
