"""Routes of leases."""

from __future__ import annotations

import time

from fastapi import APIRouter

from sandboxd.api import models_leases as models
from sandboxd.api.context import ApiContext, Context, CurrentPeer, error_answers
from sandboxd.leases import Lease
from sandboxd.sandbox import boottime_s

router = APIRouter(prefix="/v1/leases", tags=["leases"])


def _info(context: ApiContext, lease: Lease) -> models.LeaseInfo:
    sandboxes = context.service.population
    templates = context.templates.store.visible(0, {})
    return models.LeaseInfo(
        id=lease.lease_id,
        tenant_uid=lease.tenant_uid,
        ttl_s=lease.ttl_s,
        labels=lease.labels,
        created_at=lease.created_at,
        expires_at=time.time() + lease.expires_boottime_s - boottime_s(),
        sandboxes=sum(
            each.record is not None and each.record.lease == lease.lease_id for each in sandboxes
        ),
        templates=sum(each.record.lease == lease.lease_id for each in templates),
    )


@router.post("", status_code=201, operation_id="create_lease", responses=error_answers(400, 429))
async def create_lease(
    body: models.CreateLeaseRequest, context: Context, peer: CurrentPeer
) -> models.LeaseInfo:
    """A lease of the peer's. What is made under it goes when it ends."""
    lease = context.service.leases.create(peer.uid, body.ttl_s, body.labels)
    return _info(context, lease)


@router.get("", operation_id="list_leases", responses=error_answers())
async def list_leases(context: Context, peer: CurrentPeer) -> models.LeaseList:
    """The peer's leases; root sees all."""
    found = context.service.leases.visible(peer.uid)
    return models.LeaseList(leases=[_info(context, each) for each in found])


@router.get("/{lease_id}", operation_id="get_lease", responses=error_answers(404))
async def get_lease(lease_id: str, context: Context, peer: CurrentPeer) -> models.LeaseInfo:
    """One lease."""
    return _info(context, context.service.leases.find(peer.uid, lease_id, "get lease"))


@router.post("/{lease_id}/renew", operation_id="renew_lease", responses=error_answers(400, 404))
async def renew_lease(
    lease_id: str, body: models.RenewLeaseRequest, context: Context, peer: CurrentPeer
) -> models.LeaseInfo:
    """Its time counts from now on."""
    lease = context.service.leases.find(peer.uid, lease_id, "renew lease")
    return _info(context, context.service.leases.renew(lease, body.ttl_s))


@router.delete(
    "/{lease_id}", status_code=204, operation_id="release_lease", responses=error_answers(404)
)
async def release_lease(lease_id: str, context: Context, peer: CurrentPeer) -> None:
    """End it; when this answers, nothing is left of what was made under it."""
    lease = context.service.leases.find(peer.uid, lease_id, "release lease")
    await context.service.leases.release(lease)
