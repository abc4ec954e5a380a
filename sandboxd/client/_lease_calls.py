"""Requests about leases, as values. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd.client._call import Call, decoded, encoded, given, items, nothing, target
from sandboxd.client.types import LeaseInfo
from sandboxd.protocol import CONTENT_TYPE_JSON

# Of its time to live: how often a lease is renewed, and how soon again after a renewal that failed.
RENEWALS = 3
RETRIES = 10


def create_lease(ttl_s: float, metadata: Mapping[str, str] | None) -> Call[LeaseInfo]:
    return Call(
        "create lease",
        "daemon",
        "POST",
        target("leases"),
        lambda b: LeaseInfo.from_json(decoded(b)),
        encoded(given(ttl_s=ttl_s, labels=dict(metadata or {}) or None)),
        CONTENT_TYPE_JSON,
    )


def list_leases() -> Call[list[LeaseInfo]]:
    return Call(
        "list leases",
        "daemon",
        "GET",
        target("leases"),
        lambda b: [LeaseInfo.from_json(item) for item in items(b, "leases")],
    )


def renew_lease(lease_id: str) -> Call[LeaseInfo]:
    return Call(
        "renew lease",
        lease_id,
        "POST",
        target("leases", lease_id, "renew"),
        lambda b: LeaseInfo.from_json(decoded(b)),
        encoded({}),
        CONTENT_TYPE_JSON,
    )


def release_lease(lease_id: str) -> Call[None]:
    return Call("release lease", lease_id, "DELETE", target("leases", lease_id), nothing)
