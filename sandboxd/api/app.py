"""The ASGI application: routes, one shape for all errors, and a bound on JSON bodies."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import sandboxd
from sandboxd.api import (
    routes_builds,
    routes_events,
    routes_execs,
    routes_files,
    routes_images,
    routes_leases,
    routes_metrics,
    routes_ports,
    routes_sandboxes,
    routes_templates,
)
from sandboxd.api.context import ApiContext
from sandboxd.api.exec_shortcut import exec_command, run_command
from sandboxd.api.failure import failed_answer
from sandboxd.api.peer import require_allowed
from sandboxd.api.refusal import refusal
from sandboxd.api.request_ids import name_request
from sandboxd.api.sandbox_shortcuts import create_sandbox, destroy_sandbox
from sandboxd.api.shortcuts import Shortcut, Shortcuts
from sandboxd.errors import (
    InternalError,
    InvalidRequest,
    NotFound,
    OperationTimeout,
    TooLarge,
    VenusError,
)
from sandboxd.metrics.instruments import Instruments

MAX_JSON_BODY_BYTES = 4 << 20
_ERROR_SCHEMA = "#/components/schemas/ErrorBody"
# What the framework itself answers; a wrong method (405) is an invalid request.
_ROUTING_ERRORS = {404: NotFound, 413: TooLarge, 504: OperationTimeout}
_ANSWERS_TO_BODIES = {"413": "Content Too Large", "504": "Gateway Timeout"}
# These read their bodies themselves, with bounds of their own.
_STREAMING_SUFFIXES = ("/stdin", "/files", "/files/tar", "/exec", "/run")
_ONE_SANDBOX = "/v1/sandboxes/([^/]+)"
SHORTCUTS = (
    Shortcut("POST", re.compile(f"{_ONE_SANDBOX}/exec"), "exec", exec_command),
    Shortcut("POST", re.compile("/v1/run"), "exec", run_command),
    Shortcut("POST", re.compile("/v1/sandboxes"), "create sandbox", create_sandbox),
    Shortcut("DELETE", re.compile(_ONE_SANDBOX), "destroy sandbox", destroy_sandbox),
)


def build_app(context: ApiContext) -> ASGIApp:
    """The application for one daemon."""
    app = _routes()
    app.state.context = context
    app.add_exception_handler(VenusError, _venus_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected_error)
    timeout_s = context.service.config.request_timeout_s
    served = _BodyLimit(Shortcuts(app, context, SHORTCUTS), timeout_s)
    return _PeerGate(served, context.service.instruments)


def api_document() -> dict[str, Any]:
    """The OpenAPI document that every daemon of this version shows."""
    return _routes().openapi()


def api_operations() -> set[str]:
    """Every method and path that is served, as in `GET /v1/health`."""
    served = [each for each in _routes().routes if isinstance(each, APIRoute)]
    return {f"{method} {each.path}" for each in served for method in each.methods}


def _routes() -> FastAPI:
    app = FastAPI(
        title="VenusRL sandboxd",
        version=sandboxd.__version__,
        description="Isolated Linux sandboxes on this node.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.include_router(routes_sandboxes.router)
    app.include_router(routes_templates.router)
    app.include_router(routes_builds.router)
    app.include_router(routes_execs.router)
    app.include_router(routes_execs.run_router)
    app.include_router(routes_files.router)
    app.include_router(routes_ports.router)
    app.include_router(routes_images.router)
    app.include_router(routes_events.router)
    app.include_router(routes_leases.router)
    app.include_router(routes_metrics.router)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document as this daemon answers: a request that does not fit its model gets 400
    in the one shape of all errors, not the framework's 422."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        refused = {
            "description": "Bad Request",
            "content": {"application/json": {"schema": {"$ref": _ERROR_SCHEMA}}},
        }
        for methods in document["paths"].values():
            for operation in methods.values():
                answers = operation["responses"]
                if "HTTPValidationError" in str(answers.get("422")):
                    del answers["422"]
                    answers.setdefault("400", refused)
                if "requestBody" in operation:
                    for status, description in _ANSWERS_TO_BODIES.items():
                        answers.setdefault(status, {**refused, "description": description})
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


def _answer(request: Request, error: VenusError, **how: Any) -> JSONResponse:
    context: ApiContext = request.app.state.context
    return failed_answer(context.service.instruments, request.scope, error, **how)


def _operation(request: Request) -> str:
    route = request.scope.get("route")
    name = getattr(route, "operation_id", None)
    return name.replace("_", " ") if name else f"{request.method} {request.url.path}"[:200]


async def _venus_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, VenusError)
    return _answer(request, error)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    refused = refusal(_operation(request), first.get("loc", ()), str(first.get("msg", "")))
    return _answer(request, refused)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    error_class = _ROUTING_ERRORS.get(error.status_code, InvalidRequest)
    body = error_class(
        str(error.detail), operation=_operation(request), object=request.url.path[:200]
    )
    return _answer(request, body, status=error.status_code, headers=error.headers)


async def _client_gone(request: Request, _error: Exception) -> JSONResponse:
    # Nobody reads this; it is here so that a cut upload is not logged as a fault.
    cut = InvalidRequest("the request was cut", operation=_operation(request))
    return _answer(request, cut)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    failed = InternalError(
        "the daemon failed",
        operation=_operation(request),
        object=request.url.path[:200],
        cause=f"{type(error).__name__}: {error}"[:500],
    )
    return _answer(request, failed)


class _PeerGate:
    """Lets nobody in of whom the kernel does not say that he may, whatever he asks for."""

    def __init__(self, app: ASGIApp, instruments: Instruments) -> None:
        self._app = app
        self._instruments = instruments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        name_request(scope["headers"])
        try:
            require_allowed(scope["state"].get("peer"))
        except VenusError as error:
            await failed_answer(self._instruments, scope, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _BodyLimit:
    """Frameworks read a JSON body whole before they look at it; so its size is bounded first, and
    the time that it takes to come."""

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._streams(scope):
            await self._app(scope, receive, send)
            return
        received, more = 0, True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s

        async def bounded_receive() -> Message:
            nonlocal received, more
            try:
                async with asyncio.timeout_at(deadline if more else None):
                    message = await receive()
            except TimeoutError:
                cause = f"the body has not come in {self._timeout_s:g} s"
                raise HTTPException(
                    OperationTimeout.http_status, cause, {"connection": "close"}
                ) from None
            more = bool(message.get("more_body"))
            received += len(message.get("body", b""))
            if received > MAX_JSON_BODY_BYTES:
                error = TooLarge(f"the body is larger than {MAX_JSON_BODY_BYTES} bytes")
                raise HTTPException(error.http_status, error.message)
            return message

        await self._app(scope, bounded_receive, send)

    @staticmethod
    def _streams(scope: Scope) -> bool:
        path: str = scope["path"]
        return path.endswith(_STREAMING_SUFFIXES) or (
            scope["method"] == "PUT" and path.startswith("/v1/images/")
        )
