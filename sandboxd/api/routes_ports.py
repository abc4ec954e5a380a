"""The route of TCP ports in a sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from sandboxd.api.context import Context, CurrentPeer, error_answers
from sandboxd.api.upgradable_protocol import STATE_NAME, UpgradableProtocol
from sandboxd.errors import InvalidRequest
from sandboxd.port_relay import PortRelay
from sandboxd.protocol import UPGRADE_TO_TCP

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["ports"])

_SWITCHING = (
    f"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {UPGRADE_TO_TCP}\r\n\r\n"
)


@router.get(
    "/ports/{port}",
    status_code=101,
    operation_id="connect_port",
    response_class=Response,
    responses={
        101: {"description": "from here on the connection carries the bytes of the TCP connection"},
        **error_answers(400, 404, 409, 410, 429, 502, 504),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Upgrade",
                "in": "header",
                "required": True,
                "schema": {"type": "string", "enum": [UPGRADE_TO_TCP]},
            },
            {
                "name": "Connection",
                "in": "header",
                "required": True,
                "schema": {"type": "string", "enum": ["upgrade"]},
            },
        ]
    },
)
async def connect_port(
    request: Request,
    sandbox_id: str,
    port: Annotated[int, Path(ge=1, le=65535)],
    context: Context,
    peer: CurrentPeer,
) -> Response:
    """Connect to a TCP port that a program in the sandbox listens on, at its loopback or anywhere.

    Each direction has an end of its own, as in TCP. The connection ends with the sandbox, and after
    an hour in which it carries nothing; a pause only holds it up.
    """
    sandbox = context.service.population.find(peer.uid, sandbox_id, "connect to port")
    client: UpgradableProtocol = request.scope["state"][STATE_NAME]
    if request.headers.get("upgrade", "").lower() != UPGRADE_TO_TCP or not client.upgradable:
        raise InvalidRequest(
            "the request asks for no upgrade",
            operation="connect to port",
            object="header Upgrade",
            cause=f"it must be {UPGRADE_TO_TCP}, with Connection: upgrade and no body",
        )
    relay = PortRelay(await context.service.ports.connect(sandbox, port))
    await relay.attach()
    client.take_over(_SWITCHING.encode(), relay.client)
    return Response(status_code=101)  # which is sent already
