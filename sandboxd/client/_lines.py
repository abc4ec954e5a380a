"""Answers that are one JSON object a line, without an end of their own. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sandboxd.client._call import decoded
from sandboxd.client.errors import ConnectionLost
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


class ProgressLines:
    """Takes an answer apart that tells how something goes on; the last line is its end."""

    def __init__(self, operation: str, key: str) -> None:
        self._operation, self._key = operation, key
        self._decoder = LineDecoder()
        self._result: Any = None

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The lines of progress in it; raises the error that the daemon tells of."""
        for value in self._decoder.feed(chunk):
            if "line" in value:
                yield str(value["line"])
            self._result = value.get(self._key, self._result)

    def result(self) -> Any:
        """What came of it, once the answer has ended."""
        if self._result is None:
            raise ConnectionLost("the answer ended before its end", operation=self._operation)
        return self._result
