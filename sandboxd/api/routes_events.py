"""The stream of what happens to sandboxes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Response

from sandboxd.api.context import Context, CurrentPeer, LabelQuery, error_answers
from sandboxd.api.file_response import streamed
from sandboxd.events import Missed, SandboxEvent
from sandboxd.listing import parse_labels
from sandboxd.protocol import CONTENT_TYPE_NDJSON

router = APIRouter(prefix="/v1", tags=["events"])


@router.get(
    "/events",
    operation_id="follow_events",
    response_class=Response,
    responses={
        200: {
            "description": "one event a line: `seq`, `time`, `type`, `sandbox`, `labels`, and what "
            "its type has; `missed` lines say how many were lost",
            "content": {CONTENT_TYPE_NDJSON: {"schema": {"type": "string"}}},
        },
        **error_answers(400, 429),
    },
)
async def follow_events(
    context: Context,
    peer: CurrentPeer,
    after: Annotated[
        int | None, Query(ge=0, description="`seq` of the last one known; default: from now on")
    ] = None,
    sandbox: str | None = None,
    label: LabelQuery = None,
    wait: Annotated[bool, Query(description="for those that will come")] = True,
) -> Response:
    """What happens to the peer's sandboxes, root: to all."""
    labels = parse_labels(label or [], "follow events")

    def matches(event: SandboxEvent) -> bool:
        return (
            peer.uid in (0, event.tenant_uid)
            and sandbox in (None, event.sandbox_id)
            and labels.items() <= event.labels.items()
        )

    events = context.service.population.events
    found = events.follow(peer.uid, matches, after=after, wait=wait)
    return await streamed(_lines(found), CONTENT_TYPE_NDJSON)


async def _lines(
    batches: AsyncGenerator[list[SandboxEvent | Missed], None],
) -> AsyncGenerator[bytes, None]:
    try:
        async for batch in batches:
            yield b"".join(json.dumps(each.to_json()).encode() + b"\n" for each in batch)
    finally:
        await batches.aclose()
