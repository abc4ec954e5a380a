"""The daemon's configuration: one frozen value, from defaults, TOML file, environment and flags.

Later sources win: defaults < file (`--config`, or /etc/venus/sandboxd.toml where it exists) <
`VENUS_*` environment < command line. An unknown key is an error, not a silent no-op.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sandboxd.errors import InvalidRequest

DEFAULT_CONFIG_FILE = Path("/etc/venus/sandboxd.toml")
ENVIRONMENT_PREFIX = "VENUS_"
GIB = 1 << 30

# The address of a Unix socket holds 107 bytes; the longest is RUN_DIR/sandboxes/ID/init.sock.
_MAX_RUN_DIR_BYTES = 64

_LOWEST_ID_BASE = 1 << 16

StorageBackend = Literal["auto", "btrfs", "plain"]
OnStop = Literal["destroy", "keep"]
_MAY_BE_ZERO = frozenset({"standing_sandboxes"})


@dataclass(frozen=True)
class Config:
    """Everything that an operator may choose."""

    state_dir: Path = Path("/var/lib/venus")
    """Survives reboots: storage file, images, the table of id ranges."""
    run_dir: Path = Path("/run/venus")
    """Lives as long as the daemon's sandboxes: sockets and state files."""
    socket_group: str = "venus"
    """Members may use the socket; where the group does not exist, only root may."""
    cgroup_parent: str = "venus"
    """Path of the group under which all sandboxes' groups stand, in every hierarchy."""

    on_stop: OnStop = "destroy"
    """What SIGTERM does with sandboxes and templates: `keep` leaves them to the next daemon."""

    id_base: int = 1 << 30
    """First host id of the first tenant's range of 65536."""
    storage_size_bytes: int = 20 * GIB
    storage_backend: StorageBackend = "auto"

    max_sandboxes: int = 2000
    max_sandboxes_per_tenant: int = 2000
    max_concurrent_creates: int = 4
    """More at once only makes each slower: a create is a row of kernel calls under global locks."""
    max_concurrent_captures: int = 4
    """Of snapshots and of what makes their memory ready; more wait for their turn."""
    max_queued_creates: int = 512
    """Creates beyond this wait in the client: the answer is `limit_exceeded`."""
    standing_sandboxes: int = 8
    """How many may stand launched before anybody asks, beside `max_sandboxes`; 0: none. Each takes
    about a MiB, most of it the kernel's."""
    standing_window_s: float = 10.0
    """They are of the shapes that were asked for, twice or more, in this time."""
    max_forks_per_request: int = 256
    max_templates_per_tenant: int = 256
    max_build_log_bytes: int = 256 << 10
    """Of one build; the end of it is kept."""
    max_build_logs_per_tenant: int = 64
    max_build_logs: int = 1024
    """Of failed builds, on disk; of more, the oldest go."""
    pool_size_bytes: int = 16 * GIB
    """Memory of all templates together; idle ones go for new ones, least recently used first."""
    max_layers: int = 16
    """Frozen layers under one sandbox: each snapshot of a fork of a fork … adds one. Of more, the
    upper half becomes one."""
    max_execs_per_sandbox: int = 64
    max_execs: int = 4000
    """In the whole daemon. Each takes up to four of its descriptors, of which it has 65,536."""
    kept_output_bytes: int = 256 << 10
    """Of each stream of a background command: the end of what it wrote."""
    max_kept_output_bytes: int = 512 << 20
    """Of all commands together; beyond it a stream keeps 64 KiB, whatever the others do."""
    kept_ended_execs: int = 64
    kept_ended_execs_s: float = 600.0
    """How many background commands of a sandbox are remembered after their end, and how long."""
    max_readers_per_sandbox: int = 64
    max_readers: int = 4000
    """Clients attached to commands or waiting for their end, at once."""

    default_memory_bytes: int = 1 * GIB
    default_pids: int = 512
    default_cpu_cores: float = 1.0
    default_disk_bytes: int = 2 * GIB
    """Where the storage cannot limit a disk, and the request names none, there is no limit."""
    max_memory_bytes: int = 64 * GIB
    max_pids: int = 32768
    max_cpu_cores: float = 256.0
    max_disk_bytes: int = 1024 * GIB
    max_ttl_s: float = 30 * 86400.0
    max_lease_ttl_s: float = 86400.0
    max_leases_per_tenant: int = 256

    max_exec_timeout_s: float = 86400.0
    max_exec_output_bytes: int = 1 << 50
    """Upper bound, and default, of `max_output_bytes`; what is beyond is drained and counted."""
    max_upload_bytes: int = 64 * GIB
    max_image_bytes: int = 64 * GIB
    """Unpacked, all layers together."""
    max_image_entries: int = 10_000_000
    max_image_layers: int = 512
    max_concurrent_imports: int = 2
    """Imports, pulls and builds of images; more wait for their turn."""
    max_queued_imports: int = 32
    pull_timeout_s: float = 3600.0
    registry_auth_file: Path = Path("/etc/venus/registry-auth.json")
    """Credentials for pulls that bring none; root's alone."""
    request_timeout_s: float = 30.0
    """For the head of a request to come, for a body that is no upload, and for some of a large
    answer to be read."""
    create_timeout_s: float = 60.0
    """How long one create may wait in the queue."""
    e2b_address: str = ""
    """HOST:PORT on which E2B's clients are served, as docs/e2b.md says; empty: they are not."""
    e2b_keys_file: Path = Path("/etc/venus/e2b-keys")
    """Their API keys."""
    metrics_listen: str = ""
    """HOST:PORT on which the metrics, and nothing else, are served to anybody; empty: only on the
    daemon's own socket."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    log_labels: str = "venusrl-run,group,trajectory"
    """Names of those labels of a sandbox that its lines have, with commas between them."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if field.name in _MAY_BE_ZERO and value == 0:
                    continue
                if value <= 0:
                    raise _wrong(field.name, value, "must be above zero")
        if self.id_base < _LOWEST_ID_BASE:
            raise _wrong("id_base", self.id_base, f"ids below {_LOWEST_ID_BASE} are the host's")
        for name in ("state_dir", "run_dir", "e2b_keys_file", "registry_auth_file"):
            if not getattr(self, name).is_absolute():
                raise _wrong(name, getattr(self, name), "must be an absolute path")
        if len(os.fsencode(self.run_dir)) > _MAX_RUN_DIR_BYTES:
            raise _wrong("run_dir", self.run_dir, f"longer than {_MAX_RUN_DIR_BYTES} bytes")
        if not set(self.cgroup_parent.split("/")).isdisjoint({"", ".", ".."}):
            raise _wrong("cgroup_parent", self.cgroup_parent, "must be a path below the hierarchy")

    @property
    def unprivileged_id(self) -> int:
        """Of programs that the daemon runs and that need no rights; no sandbox has it."""
        return self.id_base - 1

    @property
    def socket_path(self) -> Path:
        """Where the daemon listens."""
        return self.run_dir / "sandboxd.sock"

    @property
    def sandboxes_dir(self) -> Path:
        """One directory per live sandbox: `state.json`, `init.sock`."""
        return self.run_dir / "sandboxes"

    @property
    def leases_dir(self) -> Path:
        """One file per lease."""
        return self.run_dir / "leases"

    @property
    def root_mountpoint(self) -> Path:
        """An empty directory; each sandbox mounts its root there in its own mount namespace."""
        return self.run_dir / "root"

    @property
    def keeper_dir(self) -> Path:
        """Where the pool keeper listens, while there is one."""
        return self.run_dir / "keeper"

    @property
    def builds_dir(self) -> Path:
        """One file per build that failed."""
        return self.state_dir / "builds"

    @property
    def templates_dir(self) -> Path:
        """One file per template."""
        return self.state_dir / "templates"

    @property
    def storage_dir(self) -> Path:
        """Mount point of the storage: images and the sandboxes' upper directories."""
        return self.state_dir / "storage"


def load_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Merge the sources, in the order that the module's head names."""
    values: dict[str, Any] = {}
    if file is not None or DEFAULT_CONFIG_FILE.exists():
        values |= _from_file(file or DEFAULT_CONFIG_FILE)
    values |= _from_environment(os.environ if environment is None else environment)
    for name, value in (overrides or {}).items():
        if value is not None:
            values[name] = _converted(name, value)
    return Config(**values)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            "the configuration file cannot be read",
            operation="load configuration",
            object=str(path),
            cause=str(error),
        ) from error
    return {name: _converted(name, value) for name, value in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    # Only known names are taken: VENUS_SOCKET and others belong to the client.
    return {
        name: _converted(name, environment[ENVIRONMENT_PREFIX + name.upper()])
        for name in _FIELD_TYPES
        if ENVIRONMENT_PREFIX + name.upper() in environment
    }


_FIELD_TYPES: Mapping[str, Any] = types.MappingProxyType(typing.get_type_hints(Config))


def _converted(name: str, value: Any) -> Any:
    """`value`, as text or as TOML has it, in the type of the field `name`."""
    if name not in _FIELD_TYPES:
        raise _wrong(name, value, f"no such setting; known are {', '.join(sorted(_FIELD_TYPES))}")
    wanted = _FIELD_TYPES[name]
    if typing.get_origin(wanted) is Literal:
        if value not in typing.get_args(wanted):
            raise _wrong(name, value, f"must be one of {', '.join(typing.get_args(wanted))}")
        return value
    try:
        return wanted(value)
    except (TypeError, ValueError) as error:
        raise _wrong(name, value, str(error)) from error


def _wrong(name: str, value: object, cause: str) -> InvalidRequest:
    return InvalidRequest(
        f"the value {str(value)!r} is refused",
        operation="load configuration",
        object=name,
        cause=cause,
    )
