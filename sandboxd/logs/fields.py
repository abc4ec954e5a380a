"""What a line of the log is about. Pure.

Fields are a dictionary that a record carries as `fields`: `_LOG.info("…", extra=about(…))`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar

from sandboxd.errors import VenusError

MAX_VALUE_CHARACTERS = 256
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is being answered."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


def about(**fields: object) -> dict[str, dict[str, object]]:
    """The `extra` of a record. What is None or empty is left out."""
    return {"fields": {name: value for name, value in fields.items() if value not in (None, "")}}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What it was given, the request that it belongs to, and of an error that it tells of code,
    operation and object."""
    fields: dict[str, object] = {}
    if error := _error_of(record):
        fields |= {"code": error.code, "operation": error.operation, "object": error.object}
    if asked := request_id.get():
        fields["request"] = asked
    fields |= getattr(record, "fields", {})
    return {name: _bounded(value) for name, value in fields.items() if value not in (None, "")}


def checked_request_id(given: bytes) -> str:
    """What a client may call its request; empty where it may not."""
    return given.decode() if _REQUEST_ID.fullmatch(given) else ""


def _error_of(record: logging.LogRecord) -> VenusError | None:
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return next((each for each in (*arguments, raised) if isinstance(each, VenusError)), None)


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_VALUE_CHARACTERS]
    if isinstance(value, Mapping):
        return {str(name): _bounded(each) for name, each in value.items()}
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:MAX_VALUE_CHARACTERS]
