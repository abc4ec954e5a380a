"""Answers that are one JSON object a line, without an end of their own. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sandboxd.client._call import decoded
from sandboxd.errors import InternalError, error_from_json

# No line that the daemon sends is as long.
MAX_LINE_BYTES = 1 << 20


class LineDecoder:
    """Takes the body in any pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        """The objects that the piece completes; the error that a line holds is raised in its turn.
        To be exhausted before the next piece."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise InternalError("a line of the answer has no end", operation="read answer")
        for value in (decoded(line) for line in lines if line):
            if isinstance(value, dict) and "error" in value:
                raise error_from_json(value)
            yield value
