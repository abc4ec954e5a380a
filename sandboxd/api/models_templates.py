"""Bodies of the API of templates, snapshots and forks."""

from __future__ import annotations

from pydantic import Field

from sandboxd.api.models import (
    MAX_LABELS,
    Body,
    LabelKey,
    LabelValue,
    SandboxLimits,
    SandboxOptions,
)


class SnapshotRequest(Body):
    """What to remember with a snapshot."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)


class ForkRequest(SandboxOptions):
    """How many forks, and what is different from the original in all of them."""

    count: int = Field(default=1, ge=1, description="at most max_forks_per_request of the daemon")


class TemplateInfo(Body):
    """A template as its tenant sees it."""

    id: str
    tenant_uid: int
    image: str
    parent: str | None = Field(description="template that the sandbox was forked from")
    sandbox: str = Field(description="what it was captured from")
    limits: SandboxLimits
    env: dict[str, str]
    cwd: str
    user: str
    labels: dict[str, str]
    created_at: float = Field(description="seconds since the epoch")
    layers: int = Field(description="frozen layers above the image")
    processes: int
    threads: int
    mappings: int
    own_bytes: int = Field(description="pages that this template holds and no other")
    inherited_bytes: int = Field(description="pages of earlier templates that it refers to")


class TemplateList(Body):
    """All templates that the peer may see."""

    templates: list[TemplateInfo]
