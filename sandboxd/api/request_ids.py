"""Names of requests, by which lines of the log and answers are found that belong together."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable

from sandboxd.logs.fields import checked_request_id, request_id

HEADER = "x-request-id"
_HEADER_BYTES = HEADER.encode()
# Of this daemon; others begin with something else.
_DAEMON = secrets.token_hex(4)
_numbers = itertools.count(1)


def name_request(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """As the client names it, or anew. From here on it is the name of what this task does, and of
    what it begins."""
    called = ""
    for name, value in headers:
        if name == _HEADER_BYTES:
            called = checked_request_id(value)
            break
    request_id.set(called or f"{_DAEMON}-{next(_numbers):x}")
