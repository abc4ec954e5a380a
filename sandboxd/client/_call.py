"""What a request is: a value that says what to send, and how to read the answer. No I/O here."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from sandboxd.errors import InternalError, VenusError, error_from_json
from sandboxd.protocol import API_PREFIX

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `operation` and `object` name it in errors."""

    operation: str
    object: str
    method: str
    target: str
    parse: Callable[[bytes], T]
    body: bytes = b""
    content_type: str | None = None

    def error(self, status: int, body: bytes) -> VenusError:
        """The exception for an answer that is not a success."""
        try:
            value: Any = json.loads(body)
        except ValueError:
            value = None
        error = error_from_json(value, fallback=f"the answer was HTTP {status}")
        # The daemon names what it did; an answer from elsewhere gets what was asked for.
        error.operation = error.operation or self.operation
        error.object = error.object or self.object
        return error


@functools.lru_cache(maxsize=256)
def _segment(part: str) -> str:
    return quote(part, safe="")


def target(*parts: str, **query: str | int | list[str] | None) -> str:
    """The path with its query; a list stands for the same name several times."""
    path = "/".join([API_PREFIX, *(_segment(part) for part in parts)])
    present = {name: value for name, value in query.items() if value not in (None, [])}
    return f"{path}?{urlencode(present, doseq=True, quote_via=quote)}" if present else path


def label_pairs(labels: Mapping[str, str] | None) -> list[str]:
    return [f"{name}={value}" for name, value in (labels or {}).items()]


def decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise InternalError(
            "the daemon's answer is not JSON", operation="read answer", cause=repr(body[:100])
        ) from error


def items(body: bytes, key: str) -> list[Any]:
    value = decoded(body)
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        raise InternalError(
            f"the daemon's answer has no list {key!r}",
            operation="read answer",
            cause=repr(body[:100]),
        )
    found: list[Any] = value[key]
    return found


def nothing(_body: bytes) -> None:
    return None


def given(**fields: object) -> dict[str, object]:
    """Without what the caller left to the daemon's default."""
    return {name: value for name, value in fields.items() if value is not None}


def encoded(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
