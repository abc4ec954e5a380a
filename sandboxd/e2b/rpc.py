"""Calls of the Connect protocol over ASGI: reads the request, runs the procedure, sends the
answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from starlette.types import Send

from sandboxd.api.failure import note_failure
from sandboxd.api.frame_stream import Client
from sandboxd.e2b import connect
from sandboxd.e2b.connect import Code, Codec, ConnectError, EnvelopeDecoder
from sandboxd.e2b.http import ClientGone, Request, answer, answer_json
from sandboxd.e2b.refusals import connect_error, unexpected
from sandboxd.errors import VenusError
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

MAX_CALL_S = 300.0
"""How long a call may take that is one message and one answer."""
# Above this a message takes a while to be read or written, in which others are served too.
_LARGE_BYTES = 128 << 10


@dataclass(frozen=True)
class Call:
    """Who calls, in which sandbox, as which of its users."""

    service: SandboxService
    sandbox: LiveSandbox
    user: str
    timeout_s: float | None
    keepalive_s: float | None


class AnswerStream:
    """The answers of one call, sent as they come."""

    def __init__(self, codec: Codec, send: Send, client: Client) -> None:
        self.client = client
        self._codec = codec
        self._send = send
        self._begun = False

    async def send(self, message: Message) -> None:
        """One answer; waits while the client does not read."""
        await self._body(connect.envelope(self._codec, message), last=False)

    async def end(self, error: ConnectError | None) -> None:
        """The last envelope."""
        await self._body(connect.last_envelope(error), last=True)

    async def _body(self, data: bytes, *, last: bool) -> None:
        if not self._begun:
            self._begun = True
            kind = connect.content_type(self._codec, stream=True).encode()
            head = [(b"content-type", kind)]
            await self._send({"type": "http.response.start", "status": 200, "headers": head})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


@dataclass(frozen=True)
class Unary:
    """One message, one answer."""

    request: type[Message]
    run: Callable[[Call, Any], Awaitable[Message]]


@dataclass(frozen=True)
class ServerStream:
    """One message, many answers. `run` returns early when the client is gone."""

    request: type[Message]
    run: Callable[[Call, Any, AnswerStream], Awaitable[None]]


@dataclass(frozen=True)
class ClientStream:
    """Many messages, one answer."""

    request: type[Message]
    run: Callable[[Call, AsyncIterator[Any]], Awaitable[Message]]


Procedure = Unary | ServerStream | ClientStream


async def serve(procedure: Procedure, call: Call, request: Request, send: Send) -> None:
    """Answer one call."""
    stream = not isinstance(procedure, Unary)
    kind = request.header("content-type")
    codec = connect.codec_of(kind, stream=stream)
    if codec is None:
        accepted = ", ".join(connect.content_type(each, stream=stream) for each in Codec)
        await answer(send, 415, headers={"accept-post": accepted})
        return
    if isinstance(procedure, Unary):
        await _serve_unary(procedure, codec, call, request, send)
    elif isinstance(procedure, ClientStream):
        await _serve_client_stream(procedure, codec, call, request, send)
    else:
        await _serve_server_stream(procedure, codec, call, request, send)


async def refuse(request: Request, send: Send, error: ConnectError) -> None:
    """Answer a call that no procedure sees, in the form that the client expects."""
    codec = connect.codec_of(request.header("content-type"), stream=True)
    if codec is None:
        await _answer_error(send, error)
    else:
        body = connect.last_envelope(error)
        await answer(send, 200, body, content_type=connect.content_type(codec, stream=True))


async def _serve_unary(
    procedure: Unary, codec: Codec, call: Call, request: Request, send: Send
) -> None:
    try:
        connect.check_compression(request.header("content-encoding"))
        message = await _decoded(codec, await _whole_body(request), procedure.request)
        async with asyncio.timeout(min(call.timeout_s or MAX_CALL_S, MAX_CALL_S)):
            reply = await procedure.run(call, message)
        encoded = await _encoded(codec, reply)
    except ClientGone:
        return
    except Exception as error:
        await _answer_error(send, as_connect_error(error, request.path, call.service))
        return
    kind = connect.content_type(codec, stream=False)
    await answer(send, 200, encoded, content_type=kind)


async def _serve_client_stream(
    procedure: ClientStream, codec: Codec, call: Call, request: Request, send: Send
) -> None:
    failure: ConnectError | None = None
    body = b""
    try:
        connect.check_compression(request.header("connect-content-encoding"))
        limit_s = call.service.config.max_exec_timeout_s
        async with asyncio.timeout(min(call.timeout_s or limit_s, limit_s)):
            messages = _messages(request, codec, procedure.request)
            body = connect.envelope(codec, await procedure.run(call, messages))
    except ClientGone:
        return
    except Exception as error:
        failure = as_connect_error(error, request.path, call.service)
    body += connect.last_envelope(failure)
    await answer(send, 200, body, content_type=connect.content_type(codec, stream=True))


async def _serve_server_stream(
    procedure: ServerStream, codec: Codec, call: Call, request: Request, send: Send
) -> None:
    failure: ConnectError | None = None
    try:
        connect.check_compression(request.header("connect-content-encoding"))
        message = await _only_message(request, codec, procedure.request)
    except ClientGone:
        return
    except Exception as error:
        failure = as_connect_error(error, request.path, call.service)
        await answer(
            send,
            200,
            connect.last_envelope(failure),
            content_type=connect.content_type(codec, stream=True),
        )
        return
    client = Client(request.receive)
    stream = AnswerStream(codec, send, client)
    try:
        await procedure.run(call, message, stream)
    except Exception as error:
        failure = as_connect_error(error, request.path, call.service)
    finally:
        client.close()
    if not client.gone:
        await stream.end(failure)


async def _whole_body(request: Request) -> bytes:
    content = bytearray()
    async for chunk in request.chunks():
        content += chunk
        if len(content) > connect.MAX_MESSAGE_BYTES:
            raise connect.too_large(len(content), connect.MAX_MESSAGE_BYTES)
    return bytes(content)


async def _messages(
    request: Request, codec: Codec, message_type: type[Message]
) -> AsyncIterator[Message]:
    decoder = EnvelopeDecoder()
    async for chunk in request.chunks():
        for data in decoder.feed(chunk):
            yield await _decoded(codec, data, message_type)
    if decoder.mid_message:
        raise ConnectError(Code.INVALID_ARGUMENT, "the stream ends within a message")


async def _only_message(request: Request, codec: Codec, message_type: type[Message]) -> Message:
    found: Message | None = None
    async for message in _messages(request, codec, message_type):
        if found is not None:
            raise ConnectError(Code.UNIMPLEMENTED, "more than one message")
        found = message
    if found is None:
        raise ConnectError(Code.UNIMPLEMENTED, "no message")
    return found


async def _decoded(codec: Codec, data: bytes, message_type: type[Message]) -> Message:
    if len(data) < _LARGE_BYTES:
        return codec.decode(data, message_type)
    return await asyncio.to_thread(codec.decode, data, message_type)


async def _encoded(codec: Codec, message: Message) -> bytes:
    if message.ByteSize() < _LARGE_BYTES:
        return codec.encode(message)
    return await asyncio.to_thread(codec.encode, message)


def as_connect_error(error: Exception, path: str, service: SandboxService) -> ConnectError:
    """The answer to a call that ended with this exception."""
    if isinstance(error, ConnectError):
        return error
    if isinstance(error, VenusError):
        note_failure(service.instruments, error, None)
        return connect_error(error)
    if isinstance(error, TimeoutError):
        return ConnectError(Code.DEADLINE_EXCEEDED, "the call took too long")
    failed = unexpected(error, path[:200])
    note_failure(service.instruments, failed, None)
    return connect_error(failed)


async def _answer_error(send: Send, error: ConnectError) -> None:
    await answer_json(send, error.code.http_status, error.to_json())
