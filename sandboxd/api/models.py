"""Bodies of the HTTP API, as the OpenAPI document shows them.

Shape and form are checked here; bounds that depend on the configuration are the service's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

MAX_LABELS = 64
MAX_ENV_ENTRIES = 1024
# Goes with every command, and with what the command brings itself into one packet of 256 KiB.
MAX_ENV_BYTES = 64 << 10

SandboxState = Literal["creating", "running", "stopping", "gone"]
FileType = Literal["file", "directory", "symlink", "fifo", "socket", "char_device", "block_device"]

Hostname = Annotated[
    str, StringConstraints(pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$")
]
ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
LabelValue = Annotated[str, StringConstraints(max_length=1024)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[^=\x00]{1,256}$")]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=128 * 1024)]
UserName = Annotated[str, StringConstraints(pattern=r"^[^\x00/]{0,128}$")]
Suite = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.:-]{1,127}$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4095)]


class _Body(BaseModel):
    # A misspelt field must not be ignored: the caller would think that it holds.
    model_config = ConfigDict(extra="forbid")


class LimitsRequest(_Body):
    """Limits of one sandbox; what is absent takes the daemon's default."""

    memory_bytes: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    cpu_cores: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    disk_bytes: int | None = Field(default=None, gt=0)


class CreateSandboxRequest(_Body):
    """What a new sandbox is made of."""

    image: ImageName = "base"
    limits: LimitsRequest = LimitsRequest()
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, max_length=MAX_ENV_ENTRIES)
    cwd: Annotated[str, StringConstraints(pattern=r"^(/[^\x00]*)?$", max_length=4095)] = Field(
        default="", description="of commands that name none; empty: the user's home"
    )
    user: UserName = ""
    hostname: Hostname | None = None
    ttl_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)

    @field_validator("env")
    @classmethod
    def _env_fits(cls, env: dict[str, str]) -> dict[str, str]:
        size = sum(len(f"{name}={value}".encode()) + 1 for name, value in env.items())
        if size > MAX_ENV_BYTES:
            raise ValueError(f"{size} bytes in all, at most {MAX_ENV_BYTES}")
        return env


class SandboxLimits(_Body):
    """The limits that hold."""

    memory_bytes: int
    pids: int
    cpu_cores: float
    disk_bytes: int | None = Field(description="null where the storage cannot limit a disk")


class SandboxInfo(_Body):
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


class SandboxList(_Body):
    """All sandboxes that the peer may see."""

    sandboxes: list[SandboxInfo]


class TtlRequest(_Body):
    """A new time to live, counted from now; null removes the deadline."""

    ttl_s: float | None = Field(gt=0, allow_inf_nan=False)


class SandboxMetrics(_Body):
    """What a sandbox uses now."""

    memory_bytes: int
    memory_peak_bytes: int
    cpu_s: float
    pids: int
    disk_bytes: int | None
    oom_kills: int
    execs_running: int


class SignalRequest(_Body):
    """A signal for a running command."""

    signal: int = Field(ge=1, le=64)
    whole_tree: bool = False


class MakeDirectoryRequest(_Body):
    """A directory to make inside a sandbox."""

    path: AbsolutePath
    mode: int = Field(default=0o755, ge=0, le=0o7777)
    parents: bool = False
    user: UserName | None = None


class FileEntry(_Body):
    """One object in a sandbox's file tree."""

    name: str
    path: str
    type: FileType
    size_bytes: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = Field(default=None, description="where a symbolic link points")


class FileList(_Body):
    """Entries of one directory, down to the depth that was asked for."""

    entries: list[FileEntry]
    truncated: bool = Field(default=False, description="there are more entries than may be listed")


class ImageInfo(_Body):
    """An image in the store."""

    name: str
    digest: str = Field(description="of the stream that it was made from; empty: a directory")
    size_bytes: int
    created_at: float


class ImageList(_Body):
    """All images of the node."""

    images: list[ImageInfo]


class ImportImageRequest(_Body):
    """A directory on the host to copy an image from; root only."""

    path: AbsolutePath


class BuildBaseRequest(_Body):
    """A Debian base image to build with mmdebstrap; root only."""

    suite: Suite | None = Field(default=None, description="null: the current stable release")
    packages: list[PackageName] | None = Field(
        default=None,
        max_length=512,
        description="on top of the minimal base; null: python3-minimal, procps",
    )


class Health(_Body):
    """The daemon answers."""

    status: Literal["ok"] = "ok"


class Counters(_Body):
    """Counted since the daemon started."""

    sandboxes_created: int = 0
    sandboxes_destroyed: int = 0
    sandboxes_adopted: int = 0
    creates_failed: int = 0
    execs_started: int = Field(default=0, description="programs; file operations not counted")
    execs_failed: int = 0
    file_operations: int = 0
    oom_kills: int = 0


class DaemonLimits(_Body):
    """Bounds of this daemon."""

    max_sandboxes: int
    max_memory_bytes: int
    max_pids: int
    max_cpu_cores: float
    max_disk_bytes: int
    max_execs_per_sandbox: int
    max_exec_timeout_s: float


class DaemonInfo(_Body):
    """The daemon and its node."""

    version: str
    api_version: int
    kernel: str
    sandboxes: int
    counters: Counters
    limits: DaemonLimits
    storage_backend: str


class ErrorFields(_Body):
    """What failed: the operation, on what, and why."""

    code: str
    message: str
    operation: str
    object: str
    cause: str


class ErrorBody(_Body):
    """Body of every error answer."""

    error: ErrorFields
