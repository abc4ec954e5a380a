"""Bodies of the API of builds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandboxd.api.models import Body, ErrorFields


class BuildInfo(Body):
    """A build that runs, or that failed; one that succeeded is a template."""

    id: str
    state: Literal["running", "failed"]
    tenant_uid: int
    recipe: str = Field(description="digest of what is built")
    created_at: float = Field(description="seconds since the epoch")
    ended_at: float | None
    error: ErrorFields | None


class BuildDetails(BuildInfo):
    """The same, with what it said."""

    log: str = Field(description="the end of it, at most max_build_log_bytes of the daemon")


class BuildList(Body):
    """Builds; the oldest first."""

    builds: list[BuildInfo]
