"""Frames of an exec stream: the one encoding that the daemon and its clients share.

An exec request and its response are both a sequence of frames, ``<type u8><3 zero bytes><length
u32 little-endian>`` followed by ``length`` bytes of payload. The client sends one HEADER frame,
then, for inline input, STDIN frames. The daemon answers with STARTED, any number of STDOUT and
STDERR frames in the order in which it read them, and exactly one EXIT; or, at any point, exactly
one ERROR. A run, which makes the sandbox of its command, is the same but for fields of HEADER and
STARTED that name the sandbox. A stream that ends without EXIT or ERROR was cut, and says nothing
about the command.

Of a command whose output is kept, STARTED has `epoch`, `stdout_position` and `stderr_position`:
where in its streams the output that follows begins. A client that counts can attach again from
where it stood, as long as the epoch is the same. LOST tells of bytes of one stream that are gone,
because the client was too slow or came too late; what follows in that stream comes after them.

Output is bytes and stays bytes: nothing here decodes it. Control payloads are JSON objects in
UTF-8. This module imports the standard library only, because both sides depend on it.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

API_PREFIX = "/v1"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs of a sandbox are looked for, unless its environment says otherwise."""
DEFAULT_SOCKET = "/run/venus/sandboxd.sock"
SOCKET_ENV = "VENUS_SOCKET"

CONTENT_TYPE_FRAMES = "application/vnd.venus.frames"
CONTENT_TYPE_BYTES = "application/octet-stream"
UPGRADE_TO_TCP = "tcp"
"""What a connection is upgraded to that carries the bytes of one to a port."""
CONTENT_TYPE_JSON = "application/json"
CONTENT_TYPE_TAR = "application/x-tar"
CONTENT_TYPE_NDJSON = "application/x-ndjson"

OnExternal = Literal["refuse", "reset"]
"""What a capture does about connections to outside the sandbox."""

FRAME_HEADER = struct.Struct("<B3xI")
FRAME_HEADER_BYTES = FRAME_HEADER.size

# A decoder must hold one control frame whole, so a peer's length field is bounded before it
# costs memory. Output frames are handed on in the pieces in which they arrive.
MAX_CONTROL_BYTES = 1 << 20
MAX_DATA_BYTES = 1 << 24
MAX_INLINE_STDIN_BYTES = 1 << 20

# How long one request may wait for a command's end.
DEFAULT_WAIT_S = 60.0
MAX_WAIT_S = 3600.0


class FrameType(enum.IntEnum):
    """Requests are below 16, responses from 16 on."""

    HEADER = 1
    STDIN = 2
    STARTED = 16
    STDOUT = 17
    STDERR = 18
    EXIT = 19
    ERROR = 20
    LOST = 21


CONTROL_TYPES = frozenset(
    {FrameType.HEADER, FrameType.STARTED, FrameType.EXIT, FrameType.ERROR, FrameType.LOST}
)
DATA_TYPES = frozenset({FrameType.STDIN, FrameType.STDOUT, FrameType.STDERR})

# By number, so that decoding a frame costs one dictionary look-up.
_TYPES: Mapping[int, FrameType] = {int(member): member for member in FrameType}


class StdinMode(enum.StrEnum):
    NULL = "null"
    INLINE = "inline"
    STREAM = "stream"


class OnDisconnect(enum.StrEnum):
    """What becomes of a command whose client is gone."""

    KILL = "kill"
    KEEP = "keep"


class ExitReason(enum.StrEnum):
    """Why a command is over."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    OOM = "oom"
    KILLED = "killed"
    LOST = "lost"


class ProtocolError(ValueError):
    """The peer's bytes are not a valid frame stream."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; of a data frame possibly only a piece, which means the same."""

    type: FrameType
    payload: bytes

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError) as error:  # no JSON; an endless number; too deep
            raise ProtocolError(
                f"decode {self.type.name} frame: not JSON in UTF-8: {error}"
            ) from error
        if not isinstance(value, dict):
            raise ProtocolError(
                f"decode {self.type.name} frame: expected a JSON object, got {type(value).__name__}"
            )
        return value


def encode_prefix(frame_type: FrameType, length: int) -> bytes:
    """The eight bytes before a payload, for writers that send the payload without copying it."""
    limit = MAX_CONTROL_BYTES if frame_type in CONTROL_TYPES else MAX_DATA_BYTES
    if length > limit:
        raise ProtocolError(f"encode {frame_type.name} frame: {length} bytes exceed {limit}")
    return FRAME_HEADER.pack(frame_type, length)


def encode_frame(frame_type: FrameType, payload: bytes | bytearray | memoryview) -> bytes:
    return encode_prefix(frame_type, len(payload)) + payload


def encode_json_frame(frame_type: FrameType, value: Mapping[str, Any]) -> bytes:
    return encode_frame(frame_type, json.dumps(value, separators=(",", ":")).encode())


class FrameDecoder:
    """Turns chunks of any size into frames.

    A data frame is yielded in pieces as its bytes arrive, so memory does not grow with the
    length that the peer names; a control frame is yielded once, whole. An empty data frame
    yields one empty piece.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._type: FrameType | None = None
        self._left = 0

    @property
    def mid_frame(self) -> bool:
        """True when the stream may not end here."""
        return self._type is not None or bool(self._buffer)

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yields what the chunk completes. Exhaust the iterator before feeding more."""
        view = memoryview(chunk)
        while True:
            if self._type is None:
                header, view = self._take(view, FRAME_HEADER_BYTES)
                if header is None:
                    return
                self._begin(header)
                assert self._type is not None
            if self._type in DATA_TYPES:
                if self._left and not view:
                    return
                piece = bytes(view[: self._left])
                view = view[len(piece) :]
                self._left -= len(piece)
                frame = Frame(self._type, piece)
                if not self._left:
                    self._type = None
            else:
                payload, view = self._take(view, self._left)
                if payload is None:
                    return
                frame = Frame(self._type, payload)
                self._type = None
            yield frame

    def _take(self, view: memoryview, want: int) -> tuple[bytes | None, memoryview]:
        """The next `want` bytes, or None while some have not come; and the rest of the view."""
        if not self._buffer and len(view) >= want:  # nearly always
            return bytes(view[:want]), view[want:]
        missing = want - len(self._buffer)
        self._buffer += view[:missing]
        if len(self._buffer) < want:
            return None, view[missing:]
        taken = bytes(self._buffer)
        self._buffer.clear()
        return taken, view[missing:]

    def _begin(self, header: bytes) -> None:
        number, length = FRAME_HEADER.unpack(header)
        frame_type = _TYPES.get(number)
        if frame_type is None or header[1:4] != b"\0\0\0":
            raise ProtocolError(f"decode frame header: unknown header {header.hex()}")
        limit = MAX_CONTROL_BYTES if frame_type in CONTROL_TYPES else MAX_DATA_BYTES
        if length > limit:
            raise ProtocolError(f"decode {frame_type.name} frame: length {length} exceeds {limit}")
        self._type = frame_type
        self._left = length
