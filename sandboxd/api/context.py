"""What every route needs: the service, the images, and who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from sandboxd.api.models import ErrorBody
from sandboxd.api.peer import Peer
from sandboxd.creation import Creation
from sandboxd.images import ImageStore
from sandboxd.images.queue import ImportQueue
from sandboxd.service import SandboxService
from sandboxd.templates.build import TemplateBuilder
from sandboxd.templates.service import TemplateService


@dataclass(frozen=True)
class ApiContext:
    """Wired by the composition root, kept in the app's state."""

    service: SandboxService
    creation: Creation
    templates: TemplateService
    builder: TemplateBuilder
    images: ImageStore
    imports: ImportQueue


# Coroutines, because a plain function would be sent through a thread, for each of them on each
# request.
async def context_of(request: Request) -> ApiContext:
    """The app's one context."""
    context: ApiContext = request.app.state.context
    return context


async def peer_of_request(request: Request) -> Peer:
    """The peer, as the socket's protocol found it when the connection was made, and as the gate
    in front of the application has let it in."""
    peer: Peer = request.scope["state"]["peer"]
    return peer


Context = Annotated[ApiContext, Depends(context_of)]
CurrentPeer = Annotated[Peer, Depends(peer_of_request)]
LabelQuery = Annotated[
    list[str] | None, Query(description="NAME=VALUE; those that have all of them")
]


def error_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: the statuses, all with the one error body."""
    return {status: {"model": ErrorBody} for status in (*statuses, 403, 500)}
