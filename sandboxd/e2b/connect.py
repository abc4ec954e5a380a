"""The Connect protocol (connectrpc.com), as far as a server over HTTP/1.1 needs it. Pure.

A unary call is one message as the body of a POST. A stream is a body of envelopes: a byte of flags,
the length as a big-endian 32-bit number, a message; the last envelope of an answer is JSON with the
error, if there was one. Compression is refused, so that a length on the wire is the length in
memory.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

MAX_MESSAGE_BYTES = 8 << 20
"""Of one message that a client sends."""
_MAX_NESTING = 16
_MAX_TIMEOUT_DIGITS = 10
_ENVELOPE = struct.Struct(">BI")
_COMPRESSED = 0b01
_END_STREAM = 0b10

MessageT = TypeVar("MessageT", bound=Message)


class Code(enum.Enum):
    """The protocol's codes that this server answers; each with its HTTP status."""

    CANCELED = ("canceled", 499)
    INVALID_ARGUMENT = ("invalid_argument", 400)
    DEADLINE_EXCEEDED = ("deadline_exceeded", 504)
    NOT_FOUND = ("not_found", 404)
    ALREADY_EXISTS = ("already_exists", 409)
    PERMISSION_DENIED = ("permission_denied", 403)
    RESOURCE_EXHAUSTED = ("resource_exhausted", 429)
    FAILED_PRECONDITION = ("failed_precondition", 400)
    UNIMPLEMENTED = ("unimplemented", 501)
    INTERNAL = ("internal", 500)
    UNAVAILABLE = ("unavailable", 503)

    def __init__(self, text: str, http_status: int) -> None:
        self.text = text
        self.http_status = http_status


class ConnectError(Exception):
    """An answer to a call: its code, and words for people."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def to_json(self) -> dict[str, str]:
        """The body of a unary answer, and the error of the last envelope."""
        shown = self.message.encode("utf-8", "backslashreplace").decode()
        return {"code": self.code.text, "message": shown}


class Codec(enum.Enum):
    """How messages are written."""

    JSON = "json"
    PROTO = "proto"

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """The message; `ConnectError` for bytes that are none. Unknown fields are passed over: a
        newer client may know more than this server."""
        try:
            if self is Codec.PROTO:
                return message_type.FromString(data)
            return json_format.Parse(
                data.decode(),
                message_type(),
                ignore_unknown_fields=True,
                max_recursion_depth=_MAX_NESTING,
            )
        except (DecodeError, json_format.Error, ValueError, TypeError, RecursionError) as error:
            name = message_type.DESCRIPTOR.full_name
            cause = str(error)[:200]
            raise ConnectError(Code.INVALID_ARGUMENT, f"not a {name}: {cause}") from None

    def encode(self, message: Message) -> bytes:
        """Inverse of `decode`."""
        if self is Codec.PROTO:
            return message.SerializeToString()
        return json_format.MessageToJson(message, indent=None).encode()


def codec_of(content_type: str, *, stream: bool) -> Codec | None:
    """What a request's content type asks for; None for one that is not of this protocol."""
    kind = content_type.partition(";")[0].strip().lower()
    prefix = "application/connect+" if stream else "application/"
    if not kind.startswith(prefix):
        return None
    try:
        return Codec(kind.removeprefix(prefix))
    except ValueError:
        return None


def content_type(codec: Codec, *, stream: bool) -> str:
    """Of the answer."""
    return f"application/{'connect+' if stream else ''}{codec.value}"


def check_compression(encoding: str) -> None:
    """`ConnectError` unless the request is as it is."""
    if encoding not in ("", "identity"):
        shown = encoding[:40]
        raise ConnectError(
            Code.UNIMPLEMENTED, f"unknown compression {shown!r}: supported encodings are identity"
        )


def timeout_s(header: str | None) -> float | None:
    """Of a `Connect-Timeout-Ms` header; None when there is no bound."""
    if not header:
        return None
    if not (header.isascii() and header.isdigit() and len(header) <= _MAX_TIMEOUT_DIGITS):
        raise ConnectError(Code.INVALID_ARGUMENT, "Connect-Timeout-Ms is no number of 1-10 digits")
    return int(header) / 1000 or None


def envelope(codec: Codec, message: Message) -> bytes:
    """One message of a stream."""
    data = codec.encode(message)
    return _ENVELOPE.pack(0, len(data)) + data


def last_envelope(error: ConnectError | None) -> bytes:
    """The end of a stream of answers."""
    end = {} if error is None else {"error": error.to_json()}
    data = json.dumps(end).encode()
    return _ENVELOPE.pack(_END_STREAM, len(data)) + data


class EnvelopeDecoder:
    """Messages out of a stream of bytes, in pieces of any size. Holds at most one message."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._buffer = bytearray()

    @property
    def mid_message(self) -> bool:
        """The stream may not end here."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole now. `ConnectError` at what is against the protocol; the
        stream is lost then."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _ENVELOPE.size:
                flags, length = _ENVELOPE.unpack_from(self._buffer, at)
                self._check(flags, length)
                begin = at + _ENVELOPE.size
                if len(self._buffer) < begin + length:
                    return
                at = begin + length
                yield bytes(self._buffer[begin:at])
        finally:
            del self._buffer[:at]

    def _check(self, flags: int, length: int) -> None:
        if flags & _COMPRESSED:
            raise ConnectError(Code.INTERNAL, "a compressed message, without a compression")
        if flags:
            raise ConnectError(Code.INVALID_ARGUMENT, f"unknown flags {flags:#x} of a message")
        if length > self._max_message_bytes:
            raise too_large(length, self._max_message_bytes)


def too_large(length: int, limit: int) -> ConnectError:
    """The answer to a message that is above its bound."""
    return ConnectError(
        Code.RESOURCE_EXHAUSTED, f"message size {length} is larger than configured max {limit}"
    )
