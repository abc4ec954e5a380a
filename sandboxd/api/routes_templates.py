"""Routes of snapshots, forks and templates."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandboxd.api import models, models_templates
from sandboxd.api.context import ApiContext, Context, CurrentPeer, LabelQuery, error_answers
from sandboxd.api.presentation import (
    create_options,
    created,
    recipe,
    sandbox_info,
    template_info,
)
from sandboxd.listing import parse_labels
from sandboxd.sandbox import LiveSandbox
from sandboxd.templates.capture import CaptureWish

router = APIRouter(prefix="/v1", tags=["templates"])

_FORK_ERRORS = error_answers(400, 404, 409, 410, 422, 429, 501, 504, 507)


@router.post(
    "/sandboxes/{sandbox_id}/snapshot",
    status_code=201,
    operation_id="snapshot_sandbox",
    responses=error_answers(400, 404, 409, 410, 422, 429, 507),
)
async def snapshot_sandbox(
    sandbox_id: str, body: models_templates.SnapshotRequest, context: Context, peer: CurrentPeer
) -> models_templates.TemplateInfo:
    """The sandbox as it is now, as a template; the sandbox goes on."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "snapshot sandbox")
    wish = CaptureWish(on_external=body.on_external)
    return template_info(
        await context.templates.snapshot(sandbox, body.labels, wish, lease=body.lease or "")
    )


@router.post(
    "/sandboxes/{sandbox_id}/fork",
    status_code=201,
    response_model=models.SandboxList,
    operation_id="fork_sandbox",
    responses=_FORK_ERRORS,
)
async def fork_sandbox(
    sandbox_id: str,
    body: models_templates.LiveForkRequest,
    request: Request,
    context: Context,
    peer: CurrentPeer,
) -> Response:
    """Sandboxes that go on from where this one is now; all, or none."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "fork")
    options = create_options(body, sandbox.image)
    wish = CaptureWish(on_external=body.on_external)
    made = await context.templates.fork(sandbox, options, body.count, wish)
    return await _answer(context, request, made)


@router.post(
    "/templates/{template_id}/fork",
    status_code=201,
    response_model=models.SandboxList,
    operation_id="fork_template",
    responses=_FORK_ERRORS,
)
async def fork_template(
    template_id: str,
    body: models_templates.ForkRequest,
    request: Request,
    context: Context,
    peer: CurrentPeer,
) -> Response:
    """Sandboxes of the template; all, or none."""
    template = context.templates.store.find(peer.uid, template_id, "fork")
    options = create_options(body, template.record.image)
    made = await context.templates.fork_template(template, options, body.count)
    return await _answer(context, request, made)


async def _answer(context: ApiContext, request: Request, made: list[LiveSandbox]) -> Response:
    if request.state.has_left():
        # Nobody will ever learn their ids.
        for sandbox in made:
            await context.service.destroy(sandbox)
    return created(models.SandboxList(sandboxes=[sandbox_info(each) for each in made]))


@router.post(
    "/templates",
    status_code=201,
    operation_id="build_template",
    responses=error_answers(400, 404, 409, 422, 429, 501, 504, 507),
)
async def build_template(
    body: models_templates.BuildTemplateRequest, context: Context, peer: CurrentPeer
) -> models_templates.TemplateInfo:
    """Build a template from a recipe, or find it built; answers when it is ready."""
    return template_info(await context.builder.build(peer.uid, recipe(body)))


@router.get("/templates", operation_id="list_templates", responses=error_answers(400))
async def list_templates(
    context: Context, peer: CurrentPeer, label: LabelQuery = None
) -> models_templates.TemplateList:
    """The peer's templates; root sees all."""
    wanted = parse_labels(label or [], "list templates")
    found = context.templates.store.visible(peer.uid, wanted)
    return models_templates.TemplateList(templates=[template_info(each) for each in found])


@router.get("/templates/{template_id}", operation_id="get_template", responses=error_answers(404))
async def get_template(
    template_id: str, context: Context, peer: CurrentPeer
) -> models_templates.TemplateInfo:
    """One template."""
    return template_info(context.templates.store.find(peer.uid, template_id, "get template"))


@router.delete(
    "/templates/{template_id}",
    status_code=204,
    operation_id="remove_template",
    responses=error_answers(404),
)
async def remove_template(template_id: str, context: Context, peer: CurrentPeer) -> None:
    """Forget it; forks of it live on."""
    template = context.templates.store.find(peer.uid, template_id, "remove template")
    await context.templates.remove(template)
