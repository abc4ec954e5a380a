"""Routes of builds: with their log as it comes, and of those that failed."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Response

from sandboxd.api import models_builds, models_templates
from sandboxd.api.context import Context, CurrentPeer, error_answers
from sandboxd.api.file_response import streamed
from sandboxd.api.presentation import recipe, template_info
from sandboxd.api.progress import progress_answer
from sandboxd.errors import InternalError, NotFound, VenusError
from sandboxd.protocol import CONTENT_TYPE_NDJSON
from sandboxd.templates.build import Build
from sandboxd.templates.build_records import BuildRecord
from sandboxd.templates.template import Template

router = APIRouter(prefix="/v1/builds", tags=["templates"])
_MAX_LINE = 4096


@router.post(
    "",
    operation_id="follow_build",
    response_class=Response,
    responses={**progress_answer("template"), **error_answers(400, 404, 429)},
)
async def follow_build(
    body: models_templates.BuildTemplateRequest, context: Context, peer: CurrentPeer
) -> Response:
    """As `build_template`, with the log while it is built. The first line is {build}, unless there
    is such a template. Whoever goes away ends nothing."""
    found = await context.builder.start(peer.uid, recipe(body))
    return await streamed(_lines(found), CONTENT_TYPE_NDJSON)


async def _lines(found: Template | Build) -> AsyncGenerator[bytes, None]:
    try:
        if isinstance(found, Build):
            yield _line({"build": found.build_id})
            async for text in _log_lines(found):
                yield _line({"line": text})
            found = await found.result()
        yield _line({"template": template_info(found).model_dump()})
    except VenusError as error:
        yield _line(error.to_json())
    except Exception as error:
        yield _line(InternalError("the daemon failed", cause=f"{type(error).__name__}").to_json())


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


async def _log_lines(build: Build) -> AsyncGenerator[str, None]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    async for piece in build.log.follow():
        *whole, rest = (rest + decoder.decode(piece)).split("\n")
        while len(rest) > _MAX_LINE:
            whole.append(rest[:_MAX_LINE])
            rest = rest[_MAX_LINE:]
        for each in whole:
            yield each
    if rest:
        yield rest


@router.get("", operation_id="list_builds", responses=error_answers())
async def list_builds(context: Context, peer: CurrentPeer) -> models_builds.BuildList:
    """The peer's builds that run, and those that failed lately; root sees all."""
    builder = context.builder
    builds = [
        *(models_builds.BuildInfo(**_failed(each)) for each in builder.failed.visible(peer.uid)),
        *(models_builds.BuildInfo(**_running(each)) for each in builder.running(peer.uid)),
    ]
    return models_builds.BuildList(builds=builds)


@router.get("/{build_id}", operation_id="get_build", responses=error_answers(404))
async def get_build(
    build_id: str, context: Context, peer: CurrentPeer
) -> models_builds.BuildDetails:
    """A build that runs or failed, with its log."""
    builder = context.builder
    for build in builder.running(peer.uid):
        if build.build_id == build_id:
            log = build.log.content().decode(errors="replace")
            return models_builds.BuildDetails(**_running(build), log=log)
    record = builder.failed.get(build_id)
    if record is None or peer.uid not in (0, record.tenant_uid):
        raise NotFound(
            "there is no such build, or it succeeded", operation="get build", object=build_id[:200]
        )
    log = await context.service.in_thread(lambda: builder.failed.log(build_id))
    return models_builds.BuildDetails(**_failed(record), log=log)


def _running(build: Build) -> dict[str, Any]:
    return {
        "id": build.build_id,
        "state": "running",
        "tenant_uid": build.tenant_uid,
        "recipe": build.digest,
        "created_at": build.created_at,
        "ended_at": None,
        "error": None,
    }


def _failed(record: BuildRecord) -> dict[str, Any]:
    return {
        "id": record.build_id,
        "state": "failed",
        "tenant_uid": record.tenant_uid,
        "recipe": record.recipe,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "error": record.error,
    }
