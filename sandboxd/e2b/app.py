"""The application of E2B's listener: the control plane for who has a key, and sandboxes for who has
their tokens."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.api.context import ApiContext
from sandboxd.api.failure import note_failure
from sandboxd.api.request_ids import name_request
from sandboxd.e2b import http
from sandboxd.e2b.control import SandboxRoutes
from sandboxd.e2b.envd import Envd, address_of
from sandboxd.e2b.http import ClientGone, Request, answer
from sandboxd.e2b.keys import ApiKeys
from sandboxd.e2b.refusals import error_body, http_status, unexpected
from sandboxd.e2b.snapshots import SnapshotRoutes
from sandboxd.errors import VenusError
from sandboxd.metrics.instruments import Instruments


def build_e2b_app(context: ApiContext, keys: ApiKeys) -> ASGIApp:
    """The application for one daemon."""
    control = Starlette(
        routes=[*SandboxRoutes(context).routes(), *SnapshotRoutes(context).routes()],
        exception_handlers={VenusError: _venus_error, HTTPException: _http_error},
    )
    control.state.instruments = context.service.instruments
    return E2bApp(control, Envd(context.service, keys), keys, context.service.instruments)


class E2bApp:
    """Tells the two kinds of requests apart, and answers whatever goes wrong."""

    def __init__(
        self, control: ASGIApp, envd: Envd, keys: ApiKeys, instruments: Instruments
    ) -> None:
        self._control = control
        self._envd = envd
        self._keys = keys
        self._instruments = instruments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        name_request(scope["headers"])
        begun = False

        async def watched_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._answer(scope, receive, watched_send)
        except (ClientGone, ClientDisconnect):
            pass  # nobody reads an answer
        except Exception as error:
            if begun:
                raise  # which cuts the answer
            if not isinstance(error, VenusError):
                error = unexpected(error, f"{scope['method']} {scope['path']}"[:200])
            note_failure(self._instruments, error, None)
            await http.refuse(send, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        address = address_of(request)
        if address is not None:
            await self._envd.answer(address, request, send)
            return
        if request.path == "/health":
            await answer(send, 204)
            return
        presented = request.header("x-api-key")
        key = self._keys.find(presented) if presented else None
        if key is None:
            said = "the API key is not valid" if presented else "the header X-API-KEY is missing"
            await answer(send, 401, error_body(401, said))
            return
        state = {**scope.get("state", {}), "api_key": key}
        await self._control({**scope, "state": state}, receive, send)


async def _venus_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, VenusError)
    instruments: Instruments = request.app.state.instruments
    note_failure(instruments, error, request.scope["state"]["api_key"].tenant_uid)
    status = http_status(error)
    return Response(error_body(status, str(error)), status, media_type="application/json")


async def _http_error(_request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error_body(error.status_code, str(error.detail))
    return Response(body, error.status_code, error.headers, media_type="application/json")
