"""What is asked of one sandbox: E2B's agent, which here is the daemon itself.

A request names its sandbox by headers or by its host name, and proves by the sandbox's token, or by
a signature made with it, that it may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import Send

from sandboxd import pausing
from sandboxd.api.file_response import file_response
from sandboxd.e2b import connect, port_proxy, rpc
from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.files import FileRequest, upload
from sandboxd.e2b.filesystem import FilesystemService
from sandboxd.e2b.http import Request, answer
from sandboxd.e2b.keys import ApiKeys, FileSignature
from sandboxd.e2b.paths import Paths
from sandboxd.e2b.process import ProcessService
from sandboxd.e2b.refusals import error_body
from sandboxd.e2b.rpc import Call, Procedure
from sandboxd.e2b.watching import WatchingService
from sandboxd.errors import InvalidRequest, Unreachable, VenusError
from sandboxd.lifecycle import State
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

ENVD_PORT = 49983
ENVD_VERSION = "0.6.1"
"""The version of E2B's agent whose offers this one has: later ones keep metadata of files."""
_HOST = re.compile(r"(\d{1,5})-([A-Za-z0-9-]+)\.")
_SERVICES = ("/process.Process/", "/filesystem.Filesystem/")
_KEEPALIVE_S = 90.0
_MAX_ID_LENGTH = 64


@dataclass(frozen=True)
class Address:
    """Which port of which sandbox a request is for."""

    sandbox_id: str
    port: int


def address_of(request: Request) -> Address | None:
    """By the headers that the SDK sends, or by the first label of the host name."""
    sandbox_id, port = request.header("e2b-sandbox-id"), request.header("e2b-sandbox-port")
    if not sandbox_id:
        match = _HOST.match(request.header("host"))
        if match is None:
            return None
        port, sandbox_id = match[1], match[2]
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else ENVD_PORT
    return Address(sandbox_id[:_MAX_ID_LENGTH], number)


class Envd:
    """Answers requests for all sandboxes."""

    def __init__(self, service: SandboxService, keys: ApiKeys) -> None:
        self._service = service
        self._keys = keys
        self._paths = Paths()
        self._procedures: Mapping[str, Procedure] = {
            **ProcessService().procedures(),
            **FilesystemService(self._paths).procedures(),
            **WatchingService(self._paths).procedures(),
        }

    async def answer(self, address: Address, request: Request, send: Send) -> None:
        """One request."""
        sandbox = self._find(address)
        if sandbox is not None and self._resumes(sandbox, address, request):
            await pausing.resume_for_request(self._service, sandbox)
        if sandbox is None or sandbox.state is not State.RUNNING:
            await _answer_gone(send, address.sandbox_id)
        elif address.port != ENVD_PORT:
            await self._port(sandbox, address, request, send)
        elif request.path == "/health":
            await answer(send, 204)
        elif not self._may(sandbox, request):
            await answer(send, 401, error_body(401, "unauthorized access: no valid access token"))
        elif request.path.startswith(_SERVICES):
            await self._call(sandbox, request, send)
        elif request.path == "/files":
            await self._files(sandbox, request, send)
        else:
            await answer(send, 404, error_body(404, "there is no such route"))

    async def _port(
        self, sandbox: LiveSandbox, address: Address, request: Request, send: Send
    ) -> None:
        """What a server in the sandbox answers. As with E2B, whoever knows the host may ask."""
        try:
            connection = await self._service.ports.connect(sandbox, address.port)
        except Unreachable:
            await _answer_closed_port(send, address)
            return
        await port_proxy.forward(connection, request, send)

    def _find(self, address: Address) -> LiveSandbox | None:
        try:
            return self._service.population.find(0, address.sandbox_id, "connect")
        except VenusError:
            return None

    def _resumes(self, sandbox: LiveSandbox, address: Address, request: Request) -> bool:
        """Whether the request may end a pause: not one that only asks whether it runs."""
        if sandbox.state is not State.PAUSED:
            return False
        if address.port != ENVD_PORT:
            return True
        return request.path != "/health" and self._may(sandbox, request)

    def _may(self, sandbox: LiveSandbox, request: Request) -> bool:
        of = sandbox.sandbox_id, sandbox.tenant_uid
        token = request.header("x-access-token")
        if token:
            return self._keys.of_token(token, *of) is not None
        query = request.query()
        if request.path != "/files" or "signature" not in query:
            return False
        expiration = query.get("signature_expiration", "")
        expires_at = None
        if expiration:
            if not (expiration.isascii() and expiration.isdigit() and len(expiration) <= 12):
                return False
            expires_at = int(expiration)
        signature = FileSignature(
            path=query.get("path", ""),
            operation="write" if request.method == "POST" else "read",
            user=query.get("username", ""),
            expires_at=expires_at,
            presented=query["signature"],
        )
        return self._keys.of_signature(signature, *of) is not None

    async def _call(self, sandbox: LiveSandbox, request: Request, send: Send) -> None:
        procedure = self._procedures.get(request.path)
        if request.method != "POST":
            await answer(send, 405, headers={"allow": "POST"})
            return
        if procedure is None:
            unknown = ConnectError(Code.UNIMPLEMENTED, f"{request.path[:200]} is not supported")
            await rpc.refuse(request, send, unknown)
            return
        try:
            call = self._checked_call(sandbox, request)
        except (ConnectError, InvalidRequest) as error:
            refused = rpc.as_connect_error(error, request.path, self._service)
            await rpc.refuse(request, send, refused)
            return
        await rpc.serve(procedure, call, request, send)

    def _checked_call(self, sandbox: LiveSandbox, request: Request) -> Call:
        assert sandbox.record is not None
        keepalive = request.header("keepalive-ping-interval")
        valid = keepalive.isascii() and keepalive.isdigit() and 0 < len(keepalive) <= 5
        return Call(
            service=self._service,
            sandbox=sandbox,
            user=request.basic_user() or sandbox.record.user,
            timeout_s=connect.timeout_s(request.header("connect-timeout-ms")),
            keepalive_s=max(1.0, float(keepalive)) if valid else _KEEPALIVE_S,
        )

    async def _files(self, sandbox: LiveSandbox, request: Request, send: Send) -> None:
        assert sandbox.record is not None
        query = request.query()
        wanted = FileRequest(
            service=self._service,
            sandbox=sandbox,
            user=query.get("username", "") or sandbox.record.user,
            path=query.get("path", ""),
            paths=self._paths,
        )
        if request.method == "GET":
            response = await file_response(await wanted.target(wanted.path))
            await response(request.scope, request.receive, send)
        elif request.method == "POST":
            await upload(wanted, request, send)
        else:
            await answer(send, 405, error_body(405, "GET or POST"), headers={"allow": "GET, POST"})


async def _answer_gone(send: Send, sandbox_id: str) -> None:
    # In these words the SDK knows that it is the sandbox that is gone.
    message = "The sandbox was not found"
    await answer(send, 502, error_body(502, message, sandboxId=sandbox_id))


async def _answer_closed_port(send: Send, address: Address) -> None:
    message = "The sandbox is running but port is not open"
    body = error_body(502, message, sandboxId=address.sandbox_id, port=address.port)
    await answer(send, 502, body)
