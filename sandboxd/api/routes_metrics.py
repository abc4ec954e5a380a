"""The daemon's metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sandboxd.api.context import Context, CurrentPeer, error_answers
from sandboxd.metrics.exposition import CONTENT_TYPE
from sandboxd.metrics.scrape import scrape

PATH = "/metrics"
router = APIRouter(tags=["metrics"])


@router.get(
    PATH,
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}},
        **error_answers(),
    },
)
async def metrics(context: Context, _peer: CurrentPeer) -> Response:
    """Figures of the whole node, in Prometheus' text format; no ids, no names."""
    return Response(await scrape(context), media_type=CONTENT_TYPE)
