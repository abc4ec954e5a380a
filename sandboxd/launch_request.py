"""What the launcher is asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandboxd.errors import InvalidRequest

_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Limits:
    """Hard limits of one sandbox."""

    memory_bytes: int
    pids: int
    cpu_cores: float
    disk_bytes: int | None


@dataclass(frozen=True)
class LaunchRequest:
    """One sandbox to be."""

    sandbox_id: str
    image: str
    tenant_uid: int
    limits: Limits
    hostname: str
    generation: str = ""
    """Drawn anew for each sandbox; what it reads at /run/venus/generation."""
    layers: tuple[str, ...] = ()
    """Frozen layers above the image, the topmost first."""


def check_request(request: LaunchRequest) -> None:
    """Raises `InvalidRequest` for what would not be safe in a path or in a file of names."""
    check_sandbox_id(request.sandbox_id)
    if not _HOSTNAME.fullmatch(request.hostname):
        raise InvalidRequest(
            "not a host name", operation="create sandbox", object=request.hostname[:80]
        )


def check_sandbox_id(sandbox_id: str) -> None:
    """Guards every path that is made of the id."""
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise InvalidRequest(
            "not a sandbox id", operation="check sandbox id", object=sandbox_id[:80]
        )
