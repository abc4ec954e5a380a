"""Bodies of the HTTP API, as the OpenAPI document shows them.

Shape and form are checked here; bounds that depend on the configuration are the service's.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

MAX_LABELS = 64
MAX_ENV_ENTRIES = 1024
# Goes with every command, and with what the command brings itself into one packet of 256 KiB.
MAX_ENV_BYTES = 64 << 10

SandboxState = Literal["creating", "running", "paused", "stopping", "gone"]

Hostname = Annotated[
    str, StringConstraints(pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$")
]
ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
TemplateId = Annotated[str, StringConstraints(pattern=r"^tp-[0-9a-f]{16}$")]
LeaseId = Annotated[str, StringConstraints(pattern=r"^ls-[0-9a-f]{16}$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
LabelValue = Annotated[str, StringConstraints(max_length=1024)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[^=\x00]{1,256}$")]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=128 * 1024)]
UserName = Annotated[str, StringConstraints(pattern=r"^[^\x00/]{0,128}$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4095)]


class Body(BaseModel):
    # A misspelt field must not be ignored: the caller would think that it holds.
    model_config = ConfigDict(extra="forbid")


class LimitsRequest(Body):
    """Limits of one sandbox; what is absent takes the daemon's default."""

    memory_bytes: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    cpu_cores: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    disk_bytes: int | None = Field(default=None, gt=0)


class SandboxOptions(Body):
    """What may be said of any new sandbox."""

    limits: LimitsRequest = LimitsRequest()
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, max_length=MAX_ENV_ENTRIES)
    cwd: Annotated[str, StringConstraints(pattern=r"^(/[^\x00]*)?$", max_length=4095)] = Field(
        default="", description="of commands that name none; empty: the user's home"
    )
    user: UserName = ""
    hostname: Hostname | None = None
    ttl_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)
    lease: LeaseId | None = Field(default=None, description="it goes when that one ends")

    @field_validator("env")
    @classmethod
    def _env_fits(cls, env: dict[str, str]) -> dict[str, str]:
        size = sum(len(f"{name}={value}".encode()) + 1 for name, value in env.items())
        if size > MAX_ENV_BYTES:
            raise ValueError(f"{size} bytes in all, at most {MAX_ENV_BYTES}")
        return env


class CreateSandboxRequest(SandboxOptions):
    """What a new sandbox is made of: an image, or a template, whose limits, environment, directory
    and user then stand in for what is absent."""

    image: ImageName | None = Field(default=None, description="null, without a template: base")
    template: TemplateId | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.image is not None and self.template is not None:
            raise ValueError("image and template exclude each other")
        return self


class SandboxLimits(Body):
    """The limits that hold."""

    memory_bytes: int
    pids: int
    cpu_cores: float
    disk_bytes: int | None = Field(description="null where the storage cannot limit a disk")


class SandboxInfo(Body):
    """One sandbox as its tenant sees it."""

    id: str
    image: str
    state: SandboxState
    tenant_uid: int
    limits: SandboxLimits
    env: dict[str, str]
    cwd: str
    user: str
    hostname: str
    labels: dict[str, str]
    created_at: float = Field(description="seconds since the epoch")
    expires_at: float | None = Field(description="seconds since the epoch; null: lives on")
    init_pid: int | None = Field(description="process id of its PID 1 on the host")
    generation: str = Field(description="what it reads at /run/venus/generation; new in each fork")
    template: str | None = Field(description="what it was forked from")
    lease: str | None = Field(default=None, description="it goes when that one ends")


class SandboxList(Body):
    """Sandboxes, all that were made or a page of those that there are."""

    sandboxes: list[SandboxInfo]
    next: str | None = Field(default=None, description="`after` of the next page; null: the end")


class TtlRequest(Body):
    """A new time to live, counted from now; null removes the deadline."""

    ttl_s: float | None = Field(gt=0, allow_inf_nan=False)


class SandboxMetrics(Body):
    """What a sandbox uses now."""

    memory_bytes: int
    memory_peak_bytes: int
    private_bytes: int = Field(
        description="anonymous memory, memory files and kernel memory that only it holds"
    )
    shared_bytes: int = Field(
        description="memory of the template that it was forked from; 0: of none"
    )
    cpu_s: float
    pids: int
    disk_bytes: int | None
    oom_kills: int
    execs_running: int


class SandboxStats(Body):
    """A sandbox and what it uses, for a table of all."""

    id: str
    state: str
    tenant_uid: int
    created_at: float
    template: str | None
    lease: str | None
    limits: SandboxLimits
    metrics: SandboxMetrics
    read_at_s: float = Field(
        description="on a clock of the node: what `cpu_s` has grown by from one reading to the "
        "next, by what this has, is how many cores it used"
    )


class SandboxStatsList(Body):
    """Part of a table."""

    sandboxes: list[SandboxStats]
    next: str | None = Field(default=None, description="`after` of the next page; null: the last")


class Health(Body):
    """The daemon answers."""

    status: Literal["ok"] = "ok"


class Counters(Body):
    """Counted since the daemon started."""

    sandboxes_created: int = 0
    sandboxes_forked: int = Field(default=0, description="of a template; created ones, too")
    standing_taken: int = Field(
        default=0, description="creates that found a sandbox which was launched ahead"
    )
    snapshots: int = 0
    templates_evicted: int = Field(default=0, description="idle ones, for room in the pool")
    sandboxes_destroyed: int = 0
    sandboxes_adopted: int = 0
    creates_failed: int = 0
    creates_queued: int = Field(default=0, description="that had to wait for their turn")
    creates_refused: int = Field(default=0, description="that were not admitted")
    execs_started: int = Field(default=0, description="programs; file operations not counted")
    execs_failed: int = 0
    file_operations: int = 0
    oom_kills: int = 0


class DaemonLimits(Body):
    """Bounds of this daemon."""

    max_sandboxes: int
    max_forks_per_request: int
    max_templates_per_tenant: int
    max_layers: int
    max_memory_bytes: int
    max_pids: int
    max_cpu_cores: float
    max_disk_bytes: int
    max_execs_per_sandbox: int
    max_exec_timeout_s: float


class DaemonInfo(Body):
    """The daemon and its node."""

    version: str
    api_version: int
    kernel: str
    sandboxes: int
    templates: int
    standing: int = Field(description="sandboxes that were launched ahead and that nobody has yet")
    pool_bytes: int = Field(
        description="memory of all templates, each page once; sandboxes hold none of it"
    )
    private_bytes: int = Field(
        description="of all sandboxes of the node together: memory that only one of them holds"
    )
    counters: Counters
    limits: DaemonLimits
    storage_backend: str


class ErrorFields(Body):
    """What failed: the operation, on what, and why."""

    code: str
    message: str
    operation: str
    object: str
    cause: str


class ErrorBody(Body):
    """Body of every error answer."""

    error: ErrorFields
