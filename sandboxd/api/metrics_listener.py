"""The TCP socket for Prometheus: one page to read, and nothing else. Whoever can reach it may."""

from __future__ import annotations

import socket
from typing import Any

from fastapi.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api import tcp
from sandboxd.api.context import ApiContext
from sandboxd.api.routes_metrics import PATH
from sandboxd.api.server import Server, server_of
from sandboxd.metrics.exposition import CONTENT_TYPE
from sandboxd.metrics.scrape import scrape

MAX_CONNECTIONS = 64


def build_metrics_app(context: ApiContext) -> ASGIApp:
    """The application: the metrics at `PATH`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await (await _answer(context, scope))(scope, receive, send)

    return app


async def _answer(context: ApiContext, scope: Scope) -> Response:
    if scope["path"] != PATH:
        return PlainTextResponse(f"only {PATH} is served here\n", 404)
    if scope["method"] != "GET":
        return PlainTextResponse("it can only be read\n", 405, {"allow": "GET"})
    return Response(await scrape(context), media_type=CONTENT_TYPE)


def build_metrics_server(app: ASGIApp, listener: socket.socket, *, timeout_s: float) -> Server:
    """A server for `app`, not yet started. `timeout_s`: see `BoundedProtocol`."""
    own: dict[str, Any] = {"shared": tcp.Connections(MAX_CONNECTIONS), "timeout_s": timeout_s}
    return server_of(app, listener, type("MetricsSocketProtocol", (tcp.TcpProtocol,), own))
