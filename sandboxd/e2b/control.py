"""E2B's control plane: sandboxes of the tenant whose key is presented."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandboxd import pausing
from sandboxd.api import models
from sandboxd.api.context import ApiContext
from sandboxd.api.refusal import refusal
from sandboxd.api.routes_sandboxes import new_sandbox
from sandboxd.e2b import bodies
from sandboxd.e2b.http import BodyT, Request
from sandboxd.e2b.keys import ApiKey
from sandboxd.e2b.listing import SandboxQuery, page_of
from sandboxd.e2b.names import find_template
from sandboxd.errors import ImageNotFound, NotFound, Unsupported
from sandboxd.lifecycle import State
from sandboxd.sandbox import LiveSandbox

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
# A time to live of nothing is over at once.
SHORTEST_TTL_S = 0.001


class SandboxRoutes:
    """Sandboxes, as E2B has them."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._service = context.service

    def routes(self) -> list[Route]:
        """Those of the newest clients, and of some before."""
        one = "/sandboxes/{sandbox_id}"
        return [
            route("POST", "/v2/sandboxes", self._create),
            route("POST", "/sandboxes", self._create),
            route("GET", "/v2/sandboxes", self._list),
            route("GET", "/sandboxes", self._list),
            route("GET", one, self._get),
            route("DELETE", one, self._kill),
            route("POST", f"{one}/timeout", self._set_timeout),
            route("POST", f"/v2{one}/connect", self._connect),
            route("POST", f"{one}/connect", self._connect),
            route("GET", f"{one}/metrics", self._metrics),
            route("POST", f"{one}/resume", self._connect),
            route("POST", f"{one}/pause", self._pause),
            route("PUT", f"{one}/network", self._unsupported),
        ]

    async def _create(self, request: HttpRequest) -> Response:
        body = await body_of(request, bodies.NewSandbox)
        body.check_supported()
        key = key_of(request)
        options: dict[str, Any] = {
            "env": body.env_vars,
            "labels": body.metadata,
            "ttl_s": body.timeout or SHORTEST_TTL_S,
        }
        template = find_template(self._context.templates, key.tenant_uid, body.template_id)
        if template is None:
            options["image"] = body.template_id
        else:
            options["template"] = template.template_id
        try:
            wanted = models.CreateSandboxRequest.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            if "image" in first["loc"]:
                raise _no_template(body.template_id) from None
            raise refusal("create sandbox", ("body", *first["loc"]), first["msg"]) from None
        try:
            sandbox = await new_sandbox(self._context, key.tenant_uid, wanted, expiry=body.expiry())
        except ImageNotFound:
            raise _no_template(body.template_id) from None
        if await request.is_disconnected():
            # Nobody will ever learn its id.
            await self._service.destroy(sandbox)
        return JSONResponse(bodies.sandbox_of(sandbox, key), status_code=201)

    async def _list(self, request: HttpRequest) -> Response:
        query = SandboxQuery.parse(request.query_params)
        visible = self._service.population.visible(key_of(request).tenant_uid)
        known = [each for each in visible if each.is_live]
        page, next_token = page_of(known, query)
        headers = {} if next_token is None else {"x-next-token": next_token}
        return JSONResponse([bodies.listed_sandbox(each) for each in page], headers=headers)

    async def _get(self, request: HttpRequest) -> Response:
        sandbox = self._find(request, "get sandbox")
        return JSONResponse(bodies.sandbox_detail(sandbox, key_of(request)))

    async def _kill(self, request: HttpRequest) -> Response:
        await self._service.destroy(self._find(request, "destroy sandbox"))
        return Response(status_code=204)

    async def _set_timeout(self, request: HttpRequest) -> Response:
        body = await body_of(request, bodies.TimeoutBody)
        sandbox = self._find(request, "set time to live")
        self._service.set_ttl(sandbox, body.timeout or SHORTEST_TTL_S)
        return Response(status_code=204)

    async def _connect(self, request: HttpRequest) -> Response:
        """Resumes a paused sandbox. The life of one that runs is never made shorter."""
        body = await body_of(request, bodies.ConnectBody)
        sandbox = self._find(request, "connect")
        status = 200
        if sandbox.state is State.PAUSED:
            if not body.memory:
                raise Unsupported("a paused sandbox goes on where it was", operation="connect")
            await pausing.resume(self._service, sandbox)
            self._service.set_ttl(sandbox, body.timeout or SHORTEST_TTL_S)
            status = 201
        else:
            expires_at = sandbox.expires_at()
            if expires_at is not None and expires_at < time.time() + body.timeout:
                self._service.set_ttl(sandbox, body.timeout)
        return JSONResponse(bodies.sandbox_of(sandbox, key_of(request)), status_code=status)

    async def _pause(self, request: HttpRequest) -> Response:
        """E2B's paused sandboxes do not expire; ours has the longest life that there is."""
        body = await body_of(request, bodies.PauseBody)
        sandbox = self._find(request, "pause sandbox")
        if not body.memory:
            raise Unsupported("a paused sandbox keeps its memory", operation="pause sandbox")
        await pausing.pause(self._service, sandbox, self._service.config.max_ttl_s)
        return Response(status_code=204)

    async def _metrics(self, request: HttpRequest) -> Response:
        sandbox = self._find(request, "get metrics")
        usage = await self._service.usage(sandbox, "get metrics")
        return JSONResponse([bodies.metric(sandbox, usage, time.time())])

    async def _unsupported(self, request: HttpRequest) -> Response:
        self._find(request, "find sandbox")
        raise Unsupported(f"{request.method} {request.url.path[:200]} is not supported")

    def _find(self, request: HttpRequest, operation: str) -> LiveSandbox:
        sandbox = self._service.population.find(
            key_of(request).tenant_uid, request.path_params["sandbox_id"], operation
        )
        sandbox.require_live(operation)
        return sandbox


def _no_template(name: str) -> NotFound:
    return NotFound("there is no such template", operation="create sandbox", object=name[:200])


def key_of(request: HttpRequest) -> ApiKey:
    """The key that the gate in front has let in."""
    key: ApiKey = request.scope["state"]["api_key"]
    return key


async def body_of(request: HttpRequest, model: type[BodyT]) -> BodyT:
    """The body, bounded and checked."""
    return await Request(request.scope, request.receive).json_body(model)


def route(method: str, path: str, endpoint: Endpoint) -> Route:
    """One method of one path."""
    return Route(path, endpoint, methods=[method])
