"""Bodies of the API of leases."""

from __future__ import annotations

from pydantic import Field

from sandboxd.api.models import MAX_LABELS, Body, LabelKey, LabelValue


class CreateLeaseRequest(Body):
    """A lease, which ends unless it is renewed."""

    ttl_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)


class RenewLeaseRequest(Body):
    """A new time, counted from now; null: as long as before."""

    ttl_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class LeaseInfo(Body):
    """A lease as its tenant sees it."""

    id: str
    tenant_uid: int
    ttl_s: float
    labels: dict[str, str]
    created_at: float = Field(description="seconds since the epoch")
    expires_at: float = Field(description="seconds since the epoch, unless it is renewed")
    sandboxes: int = Field(description="made under it, that are there")
    templates: int


class LeaseList(Body):
    """All leases that the peer may see."""

    leases: list[LeaseInfo]
