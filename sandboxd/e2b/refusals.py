"""The daemon's errors as E2B's clients read them: by HTTP status and JSON on the control plane, and
by the Connect protocol's codes inside a sandbox. One table for each. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.errors import (
    Conflict,
    ExecFailed,
    ForkFailed,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    SandboxGone,
    SnapshotRefused,
    StorageFull,
    TooLarge,
    Unauthorized,
    Unsupported,
    VenusError,
)

_CODES: Mapping[type[VenusError], Code] = {
    InvalidRequest: Code.INVALID_ARGUMENT,
    ExecFailed: Code.INVALID_ARGUMENT,
    TooLarge: Code.INVALID_ARGUMENT,
    Unauthorized: Code.PERMISSION_DENIED,
    NotFound: Code.NOT_FOUND,
    Conflict: Code.FAILED_PRECONDITION,
    SandboxGone: Code.UNAVAILABLE,
    LimitExceeded: Code.RESOURCE_EXHAUSTED,
    StorageFull: Code.RESOURCE_EXHAUSTED,
    Unsupported: Code.UNIMPLEMENTED,
    OperationTimeout: Code.DEADLINE_EXCEEDED,
}
# Whatever else there is keeps its own HTTP status. A sandbox that is gone does not exist, to E2B;
# what it calls a wrong state, it answers with a conflict; and 403 it says of keys, not of files.
_STATUSES: Mapping[type[VenusError], int] = {
    SandboxGone: 404,
    ExecFailed: 400,
    SnapshotRefused: 409,
    ForkFailed: 500,
    Unsupported: 400,
}


def connect_error(error: VenusError) -> ConnectError:
    """What a call in a sandbox answers."""
    for error_class in type(error).__mro__:
        if error_class in _CODES:
            return ConnectError(_CODES[error_class], str(error))
    return ConnectError(Code.INTERNAL, str(error))


def http_status(error: VenusError) -> int:
    """What a REST request answers."""
    return _STATUSES.get(type(error), error.http_status)


def error_body(status: int, message: str, **more: object) -> bytes:
    """The one shape of E2B's error answers."""
    shown = message.encode("utf-8", "backslashreplace").decode()
    return json.dumps({"code": status, "message": shown, **more}).encode()


def unexpected(error: Exception, operation: str) -> InternalError:
    """The answer to what should not happen."""
    failed = InternalError(
        "the daemon failed", operation=operation, cause=f"{type(error).__name__}: {error}"[:500]
    )
    failed.__cause__ = error
    return failed
