"""The hottest requests, answered before the framework sees them: to make, use and remove a sandbox.

What the framework does for a request with a small body costs more than the fork of a small sandbox.
A shortcut answers as its route of the same path would, and shares with it all that it does. The
framework's own is what a refused body is answered: such a request is handed on as it came.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api.context import ApiContext
from sandboxd.api.failure import failed_answer
from sandboxd.errors import InternalError, OperationTimeout, VenusError


@dataclass(frozen=True)
class ShortRequest:
    """One request that takes a shortcut."""

    context: ApiContext
    scope: Scope
    receive: Receive
    send: Send
    sandbox_id: str = ""
    """That the path names."""

    @property
    def tenant_uid(self) -> int:
        uid: int = self.scope["state"]["peer"].uid
        return uid

    def has_left(self) -> bool:
        """Whether the client is gone (sandboxd.api.departure)."""
        left: bool = self.scope["state"]["has_left"]()
        return left


# Answers, and returns None; or hands on to the framework, which receives what is returned. It
# raises only before it has begun to answer.
Handler = Callable[[ShortRequest], Awaitable[Receive | None]]


@dataclass(frozen=True)
class Shortcut:
    """`path` has at most one group, the id of a sandbox."""

    method: str
    path: re.Pattern[str]
    operation: str
    answer: Handler


class Shortcuts:
    """Answers the requests that a shortcut is for, and hands all others on."""

    def __init__(self, app: ASGIApp, context: ApiContext, shortcuts: tuple[Shortcut, ...]) -> None:
        self._app = app
        self._context = context
        self._shortcuts = shortcuts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for each in self._shortcuts:
            if each.method == scope["method"] and (match := each.path.fullmatch(scope["path"])):
                request = ShortRequest(self._context, scope, receive, send, *match.groups())
                await self._take(each, request)
                return
        await self._app(scope, receive, send)

    async def _take(self, shortcut: Shortcut, request: ShortRequest) -> None:
        try:
            handed_on = await shortcut.answer(request)
        except Exception as error:
            answer = _known(error, shortcut.operation, request.sandbox_id or "a new sandbox")
            # The rest of what has not come in time is not waited for.
            headers = {"connection": "close"} if isinstance(answer, OperationTimeout) else None
            instruments = self._context.service.instruments
            response = failed_answer(instruments, request.scope, answer, headers=headers)
            await response(request.scope, request.receive, request.send)
            return
        if handed_on is not None:
            await self._app(request.scope, handed_on, request.send)


def _known(error: Exception, operation: str, object: str) -> VenusError:
    if isinstance(error, VenusError):
        return error
    failed = InternalError(
        "the daemon failed",
        operation=operation,
        object=object,
        cause=f"{type(error).__name__}: {error}"[:500],
    )
    failed.__cause__ = error
    return failed
