"""Requests that fail: counted by code, and logged where that is the operator's matter."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi.responses import JSONResponse
from starlette.types import Scope

from sandboxd.api.peer import Peer
from sandboxd.api.request_ids import HEADER
from sandboxd.errors import (
    ForkFailed,
    InternalError,
    LimitExceeded,
    OperationTimeout,
    StorageFull,
    Unreachable,
    VenusError,
)
from sandboxd.logs.fields import about, request_id
from sandboxd.metrics.instruments import Instruments

_LOG = logging.getLogger("sandboxd")

# Whatever else there is is the client's doing, and no matter of the log's unless it is asked for.
_LEVELS: Mapping[type[VenusError], int] = {
    InternalError: logging.ERROR,
    ForkFailed: logging.WARNING,
    LimitExceeded: logging.WARNING,
    OperationTimeout: logging.WARNING,
    StorageFull: logging.WARNING,
    Unreachable: logging.WARNING,
}


def failed_answer(
    instruments: Instruments,
    scope: Scope,
    error: VenusError,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The answer, in the one shape of all errors. `status`: instead of the error's own."""
    peer: Peer | None = scope["state"].get("peer")
    note_failure(instruments, error, None if peer is None else peer.uid)
    named = {HEADER: request_id.get(), **(headers or {})}
    return JSONResponse(error.to_json(), error.http_status if status is None else status, named)


def note_failure(instruments: Instruments, error: VenusError, tenant_uid: int | None) -> None:
    """A client is answered so. None: it is not known whose it is."""
    instruments.note_error(error)
    level = _LEVELS.get(type(error), logging.DEBUG)
    if _LOG.isEnabledFor(level):
        extra = about(event="failed", tenant=tenant_uid)
        _LOG.log(level, "%s", error, exc_info=_traceback_of(error), extra=extra)


def _traceback_of(error: VenusError) -> VenusError | None:
    """Faults of our own are found by it."""
    return error if isinstance(error, InternalError) else None
