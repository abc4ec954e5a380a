"""Snapshots and forks on E2B's control plane: templates, and sandboxes made from a running one."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandboxd import paging
from sandboxd.api.context import ApiContext
from sandboxd.bounds import CreateOptions
from sandboxd.e2b import bodies
from sandboxd.e2b.control import SHORTEST_TTL_S, body_of, key_of, route
from sandboxd.e2b.listing import page_limit, page_token
from sandboxd.e2b.names import NAME_LABEL, find_template
from sandboxd.errors import NotFound, Unsupported
from sandboxd.templates.template import Template


class SnapshotRoutes:
    """A snapshot is a template that no recipe made."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """By E2B's paths."""
        return [
            route("POST", "/sandboxes/{sandbox_id}/fork", self._fork),
            route("POST", "/sandboxes/{sandbox_id}/snapshots", self._snapshot),
            route("GET", "/snapshots", self._list),
            route("DELETE", "/templates/{template_id:path}", self._delete),
        ]

    async def _fork(self, request: HttpRequest) -> Response:
        """All, or none: then the answer is the error."""
        body = await body_of(request, bodies.ForkBody)
        key = key_of(request)
        sandbox = self._context.service.population.find(
            key.tenant_uid, request.path_params["sandbox_id"], "fork"
        )
        sandbox.require_running("fork")
        assert sandbox.record is not None
        wanted = CreateOptions(
            image=sandbox.image,
            ttl_s=body.timeout or SHORTEST_TTL_S,
            labels=dict(sandbox.record.labels),
        )
        made = await self._context.templates.fork(sandbox, wanted, body.count)
        if await request.is_disconnected():
            # Nobody will ever learn their ids.
            for each in made:
                await self._context.service.destroy(each)
        answers = [{"sandbox": bodies.sandbox_of(each, key)} for each in made]
        return JSONResponse(answers, status_code=201)

    async def _snapshot(self, request: HttpRequest) -> Response:
        body = await body_of(request, bodies.SnapshotBody)
        if not body.memory:
            raise Unsupported("a snapshot always has the memory", operation="snapshot sandbox")
        sandbox = self._context.service.population.find(
            key_of(request).tenant_uid, request.path_params["sandbox_id"], "snapshot sandbox"
        )
        labels = {} if body.name is None else {NAME_LABEL: body.name}
        template = await self._context.templates.snapshot(sandbox, labels)
        return JSONResponse(_snapshot_info(template), status_code=201)

    async def _list(self, request: HttpRequest) -> Response:
        """The newest first."""
        query = request.query_params
        of_sandbox, name = query.get("sandboxID", ""), query.get("name", "")
        found, end = paging.cut(
            (
                ((each.record.created_at, each.template_id), each)
                for each in self._context.templates.store.visible(key_of(request).tenant_uid, {})
                if not each.record.recipe
                and (not of_sandbox or each.record.sandbox_id == of_sandbox)
                and (not name or each.record.labels.get(NAME_LABEL) == name)
            ),
            page_limit(query),
            page_token(query),
            newest_first=True,
        )
        headers = {} if end is None else {"x-next-token": paging.token(end)}
        return JSONResponse([_snapshot_info(each) for each in found], headers=headers)

    async def _delete(self, request: HttpRequest) -> Response:
        """Forks of it live on."""
        named = request.path_params["template_id"]
        template = find_template(self._context.templates, key_of(request).tenant_uid, named)
        if template is None:
            raise NotFound("there is no such template", object=named[:200])
        await self._context.templates.remove(template)
        return Response(status_code=204)


def _snapshot_info(template: Template) -> dict[str, Any]:
    name = template.record.labels.get(NAME_LABEL)
    return {"snapshotID": template.template_id, "names": [] if name is None else [name]}
