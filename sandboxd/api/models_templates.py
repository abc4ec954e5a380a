"""Bodies of the API of templates, snapshots and forks."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Base64Bytes, Field, StringConstraints, model_validator

from sandboxd.api.models import (
    MAX_LABELS,
    AbsolutePath,
    Body,
    ImageName,
    LabelKey,
    LabelValue,
    LeaseId,
    SandboxLimits,
    SandboxOptions,
    TemplateId,
)
from sandboxd.protocol import OnExternal

MAX_STEPS = 256
MAX_STEP_TIMEOUT_S = 3600.0
Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=64 << 10)]
Timeout = Annotated[float, Field(gt=0, le=MAX_STEP_TIMEOUT_S, allow_inf_nan=False)]
# A shell line, or a program with its arguments.
Command = Argument | Annotated[list[Argument], Field(min_length=1, max_length=1024)]

External = Annotated[
    OnExternal,
    Field(description="connections to outside the sandbox: the capture is refused, or resets them"),
]


class SnapshotRequest(Body):
    """What to remember with a snapshot."""

    on_external: External = "refuse"
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)
    lease: LeaseId | None = Field(default=None, description="it goes when that one ends")


class ForkRequest(SandboxOptions):
    """How many forks, and what is different from the original in all of them."""

    count: int = Field(default=1, ge=1, description="at most max_forks_per_request of the daemon")


class LiveForkRequest(ForkRequest):
    """As of a template; what is captured for it is gone afterwards."""

    on_external: External = "refuse"


class RecipeFileBody(Body):
    """A file to write before anything runs, as the sandbox's root."""

    path: AbsolutePath
    content: Base64Bytes = Field(description="in base64")
    mode: int = Field(default=0o644, ge=0, le=0o7777)


class RecipeCommandBody(Body):
    """A command that must end with exit code 0."""

    command: Command
    timeout_s: Timeout = 60.0


class WarmCommandBody(Body):
    """A command that is left running, and is ready once `ready` ends with exit code 0."""

    command: Command
    ready: Command | None = None
    timeout_s: Timeout = 60.0


class BuildTemplateRequest(SandboxOptions):
    """A recipe. It stands on an image or on a template; the same recipe is built only once."""

    image: ImageName | None = Field(default=None, description="null, without a template: base")
    template: TemplateId | None = None
    files: list[RecipeFileBody] = Field(default_factory=list, max_length=MAX_STEPS)
    setup: list[RecipeCommandBody] = Field(default_factory=list, max_length=MAX_STEPS)
    warm: list[WarmCommandBody] = Field(default_factory=list, max_length=MAX_STEPS)
    on_fork: RecipeCommandBody | None = Field(
        default=None, description="runs in each fork before its creation is answered"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.lease is not None:
            raise ValueError("a recipe is built once for all, not under a lease")
        if self.image is not None and self.template is not None:
            raise ValueError("image and template exclude each other")
        return self


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
    lease: str | None = Field(default=None, description="it goes when that one ends")
    recipe: str | None = Field(description="digest of what it was built from; null: a snapshot")
    layers: int = Field(description="frozen layers above the image")
    processes: int
    threads: int
    mappings: int
    own_bytes: int = Field(description="memory that this template holds and no earlier one")
    inherited_bytes: int = Field(description="memory of earlier templates that it refers to")
    shared_bytes: int = Field(description="memory that its forks share, whoever else holds it")


class TemplateList(Body):
    """All templates that the peer may see."""

    templates: list[TemplateInfo]
