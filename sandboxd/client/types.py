"""What the client returns: frozen values, each with a constructor from the daemon's JSON.

A daemon newer than the client may add fields; unknown ones are ignored, missing ones that have
no default are an error naming the type.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import stat as stat_bits
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, TypedDict

from sandboxd.errors import InternalError
from sandboxd.protocol import ExitReason


class FileType(StrEnum):
    """Kind of an object in a sandbox's file tree."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHAR_DEVICE = "char_device"
    BLOCK_DEVICE = "block_device"


class SandboxState(StrEnum):
    """Where a sandbox is in its life."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    GONE = "gone"


class _FromJson:
    """Construction from a JSON object by field name."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if not isinstance(value, Mapping):
            raise _unreadable(cls, f"expected an object, got {value!r:.200}")
        names = _field_names(cls)  # type: ignore[arg-type]
        try:
            return cls(**{name: item for name, item in value.items() if name in names})
        except (TypeError, ValueError) as error:
            raise _unreadable(cls, str(error)) from error


@functools.cache
def _field_names(cls: type) -> frozenset[str]:
    return frozenset(each.name for each in dataclasses.fields(cls))


def _unreadable(cls: type, cause: str) -> InternalError:
    return InternalError(
        f"the daemon's answer is not a {cls.__name__}", operation="read answer", cause=cause
    )


@dataclass(frozen=True)
class SandboxLimits(_FromJson):
    """The limits that hold; `disk_bytes` is None where the storage cannot limit a disk."""

    memory_bytes: int
    pids: int
    cpu_cores: float
    disk_bytes: int | None = None


@dataclass(frozen=True)
class SandboxInfo(_FromJson):
    """One sandbox as the daemon knows it."""

    id: str
    image: str
    state: SandboxState
    tenant_uid: int
    limits: SandboxLimits
    env: dict[str, str]
    cwd: str
    user: str
    labels: dict[str, str]
    created_at: float
    expires_at: float | None = None
    hostname: str = ""
    init_pid: int | None = None
    generation: str = ""
    template: str | None = None
    lease: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", SandboxState(self.state))
        if not isinstance(self.limits, SandboxLimits):
            object.__setattr__(self, "limits", SandboxLimits.from_json(self.limits))

    @property
    def sandbox_id(self) -> str:
        return self.id

    @property
    def metadata(self) -> dict[str, str]:
        return self.labels

    @property
    def started_at(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.created_at, dt.UTC)

    @property
    def end_at(self) -> dt.datetime | None:
        if self.expires_at is None:
            return None
        return dt.datetime.fromtimestamp(self.expires_at, dt.UTC)


class HasLeaseId(Protocol):
    """A lease: `Lease` or `AsyncLease`."""

    @property
    def lease_id(self) -> str: ...


def lease_id_of(lease: str | HasLeaseId | None) -> str | None:
    """Of a lease, or of its id."""
    return lease if lease is None or isinstance(lease, str) else lease.lease_id


@dataclass(frozen=True)
class LeaseInfo(_FromJson):
    """A lease as the daemon knows it; `sandboxes` and `templates` count what is under it."""

    id: str
    tenant_uid: int
    ttl_s: float
    expires_at: float
    created_at: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)
    sandboxes: int = 0
    templates: int = 0


class ForkOptions(TypedDict, total=False):
    """What is different in a fork; what is absent is as in the original."""

    memory_bytes: int | None
    pids: int | None
    cpu_cores: float | None
    disk_bytes: int | None
    envs: Mapping[str, str] | None
    cwd: str | None
    user: str | None
    hostname: str | None
    timeout: float | None
    metadata: Mapping[str, str] | None
    lease: str | HasLeaseId | None


@dataclass(frozen=True)
class TemplateInfo(_FromJson):
    """A template as the daemon knows it. `own_bytes` is memory that no earlier template holds,
    `inherited_bytes` what it shares with earlier ones, `shared_bytes` all that its forks share."""

    id: str
    tenant_uid: int
    image: str
    sandbox: str
    limits: SandboxLimits
    env: dict[str, str]
    cwd: str
    user: str
    labels: dict[str, str]
    created_at: float
    parent: str | None = None
    lease: str | None = None
    recipe: str | None = None
    layers: int = 0
    processes: int = 0
    threads: int = 0
    mappings: int = 0
    own_bytes: int = 0
    inherited_bytes: int = 0
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.limits, SandboxLimits):
            object.__setattr__(self, "limits", SandboxLimits.from_json(self.limits))


@dataclass(frozen=True)
class BuildInfo(_FromJson):
    """A build that runs (`state` is `running`) or `failed`; `error` says why, `log` is the end of
    what it said, where it was asked for."""

    id: str
    state: str
    tenant_uid: int
    recipe: str
    created_at: float
    ended_at: float | None = None
    error: dict[str, str] | None = None
    log: str = ""


@dataclass(frozen=True)
class CommandInfo(_FromJson):
    """A command that the daemon knows of; `inherited` ones came with a fork, of `kept` ones the
    output can be read."""

    exec_id: int
    pid: int
    running: bool
    argv: list[str] = field(default_factory=list)
    kept: bool = False
    inherited: bool = False
    pty: bool = False
    exit_code: int | None = None
    signal: int | None = None
    reason: ExitReason | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0

    def __post_init__(self) -> None:
        if self.reason is not None:
            object.__setattr__(self, "reason", ExitReason(self.reason))


PtySize = tuple[int, int]
"""Rows and columns of a terminal."""


@dataclass(frozen=True)
class SandboxMetrics(_FromJson):
    """What a sandbox uses now."""

    memory_bytes: int
    memory_peak_bytes: int
    cpu_s: float
    pids: int
    disk_bytes: int | None = None
    private_bytes: int = 0
    shared_bytes: int = 0
    oom_kills: int = 0
    execs_running: int = 0


@dataclass(frozen=True)
class SandboxStats(_FromJson):
    """A sandbox and what it uses, as a table of all has it. `read_at_s` is on a clock of the node:
    from one reading to the next, what `metrics.cpu_s` grows by is by how many cores it used."""

    id: str
    state: SandboxState
    tenant_uid: int
    created_at: float
    limits: SandboxLimits
    metrics: SandboxMetrics
    read_at_s: float
    template: str | None = None
    lease: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", SandboxState(self.state))
        object.__setattr__(self, "limits", SandboxLimits.from_json(self.limits))
        object.__setattr__(self, "metrics", SandboxMetrics.from_json(self.metrics))


@dataclass(frozen=True)
class FileEntry(_FromJson):
    """One object in a sandbox's file tree; of a symbolic link the link itself."""

    name: str
    path: str
    type: FileType
    size_bytes: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", FileType(self.type))

    @property
    def permissions(self) -> str:
        """As `ls -l` shows it, for instance `-rw-r--r--`."""
        return stat_bits.filemode(_TYPE_BITS[self.type] | stat_bits.S_IMODE(self.mode))


_TYPE_BITS = {
    FileType.FILE: stat_bits.S_IFREG,
    FileType.DIRECTORY: stat_bits.S_IFDIR,
    FileType.SYMLINK: stat_bits.S_IFLNK,
    FileType.FIFO: stat_bits.S_IFIFO,
    FileType.SOCKET: stat_bits.S_IFSOCK,
    FileType.CHAR_DEVICE: stat_bits.S_IFCHR,
    FileType.BLOCK_DEVICE: stat_bits.S_IFBLK,
}


class WatchKind(StrEnum):
    """What happened to a file. `overflow`: something was missed, so look again."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    OVERFLOW = "overflow"


@dataclass(frozen=True)
class WatchEvent(_FromJson):
    """Something that happened in a watched directory; `target` is the new name of a rename."""

    type: WatchKind
    path: str
    is_directory: bool = False
    target: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", WatchKind(self.type))


@dataclass(frozen=True)
class SandboxEvent(_FromJson):
    """Something that happened to a sandbox. Of type `missed`: `count` events were lost (None:
    nobody knows how many); then there is no sandbox."""

    seq: int
    type: str
    time: float = 0.0
    sandbox: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """What its type has: `exec_id`, `pid`, `exit_code`, `signal`, `reason`, `template`, …"""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if not isinstance(value, Mapping):
            raise _unreadable(cls, f"expected an object, got {value!r:.200}")
        names = {each.name for each in dataclasses.fields(cls)}
        details = {name: item for name, item in value.items() if name not in names}
        return super().from_json({**value, "details": details})


@dataclass(frozen=True)
class FileListing:
    """Entries of a directory; `truncated` when there are more than the daemon lists."""

    entries: tuple[FileEntry, ...]
    truncated: bool = False


@dataclass(frozen=True)
class ImageInfo(_FromJson):
    """An image in the daemon's store. `env`, `cwd` and `user` are the defaults of its sandboxes;
    `entrypoint` and `command` are what an archived image says, and never run."""

    name: str
    digest: str = ""
    size_bytes: int = 0
    created_at: float = 0.0
    source: str = ""
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("entrypoint", "command"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True)
class DaemonInfo(_FromJson):
    """The daemon and its node. `counters` count since the daemon started."""

    version: str
    api_version: int
    kernel: str
    sandboxes: int
    templates: int = 0
    standing: int = 0
    pool_bytes: int = 0
    private_bytes: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    storage_backend: str = ""


@dataclass(frozen=True)
class Started(_FromJson):
    """The command runs; `pid` is its number inside the sandbox, which is given where it was made
    for the command. `epoch` and the positions are those of a kept command's output."""

    exec_id: int
    pid: int
    sandbox: SandboxInfo | None = None
    epoch: int | None = None
    stdout_position: int = 0
    stderr_position: int = 0

    def __post_init__(self) -> None:
        if self.sandbox is not None and not isinstance(self.sandbox, SandboxInfo):
            object.__setattr__(self, "sandbox", SandboxInfo.from_json(self.sandbox))


@dataclass(frozen=True)
class Exit(_FromJson):
    """How a command ended. `exit_code` is None when a signal ended it."""

    exit_code: int | None
    signal: int | None
    reason: ExitReason
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    duration_s: float = 0.0
    user_cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    max_rss_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", ExitReason(self.reason))

    @property
    def shell_code(self) -> int:
        """One number, as a shell would report it: 128 + signal for a command that was killed."""
        if self.exit_code is not None:
            return self.exit_code
        return 128 + self.signal if self.signal is not None else 255


@dataclass(frozen=True)
class Output:
    """A piece of what a command wrote, exactly as it wrote it. `lost` bytes came before it, which
    nobody can have any more."""

    stream: str
    data: bytes
    lost: int = 0


@dataclass(frozen=True)
class CommandResult:
    """A command that ended, with its output as exact bytes and as text."""

    stdout_bytes: bytes
    stderr_bytes: bytes
    exit: Exit
    lost_bytes: int = 0
    """How much of the output of a kept command came too early, or too fast, to be here."""

    @functools.cached_property
    def stdout(self) -> str:
        """Standard output as UTF-8; what is not UTF-8 shows as U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @functools.cached_property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int:
        return self.exit.shell_code

    @property
    def reason(self) -> ExitReason:
        return self.exit.reason

    @property
    def signal(self) -> int | None:
        return self.exit.signal

    @property
    def truncated(self) -> bool:
        return self.exit.truncated

    @property
    def duration_s(self) -> float:
        return self.exit.duration_s

    @property
    def ok(self) -> bool:
        return self.exit.reason is ExitReason.EXITED and self.exit.exit_code == 0
