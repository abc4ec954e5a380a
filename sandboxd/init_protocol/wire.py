"""Limits, the error, and strings: what the other modules of this package share."""

from __future__ import annotations

PROTOCOL_VERSION = 1
MAX_PACKET_SIZE = 256 * 1024
SEND_BUFFER_SIZE = MAX_PACKET_SIZE
MAX_PACKET_FDS = 16
MAX_EXECS = 1024
MAX_STRINGS = 16384
MAX_RLIMITS = 16
MAX_CGROUP_PROCS = 8
MAX_PLAN_OPS = 512
MAX_PLAN_SIZE = 1024 * 1024
MAX_PLAN_SLOTS = 32
MAX_FILTER_INSTRUCTIONS = 4096
MAX_SANDBOX_ID = 64
MAX_UPLOAD_FRAME = 1024 * 1024
READ_TO_END = 2**64 - 1


class ProtocolError(ValueError):
    """Bytes that are not what the protocol allows, or values that it cannot carry."""


def c_string(text: str | bytes) -> bytes:
    try:
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as error:  # JSON can carry half a surrogate pair
        raise ProtocolError(f"a string for init is no text: {error}") from error
    if b"\0" in raw:
        raise ProtocolError(f"a string for init contains a NUL byte: {raw[:80]!r}")
    return raw + b"\0"
