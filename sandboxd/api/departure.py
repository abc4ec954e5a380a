"""Clients that leave while the daemon waits for a sandbox on their behalf."""

from __future__ import annotations

import asyncio
import functools
import select
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

_T = TypeVar("_T")
_LOOK_EVERY_S = 1.0


def departure_of(connection: socket.socket) -> functools.partial[bool]:
    """A question that can be asked again and again: has the peer closed the connection?

    Of the kernel, because as long as a request's body waits to be read, the server does not read
    its connection, and so does not see its end.
    """
    return functools.partial(_has_left, connection)


def _has_left(connection: socket.socket) -> bool:
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP comes unasked
    return bool(poll.poll(0))


async def while_there(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client leaves: `ClientDisconnect`."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK_EVERY_S)
            if not task.done() and request.state.has_left():
                raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
