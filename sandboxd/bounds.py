"""What a client may ask for, and what it gets when it does not ask. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from sandboxd.config import Config
from sandboxd.errors import InvalidRequest, Unsupported
from sandboxd.images.documents import ImageDefaults
from sandboxd.launch_request import Limits

MIB = 1 << 20
# Below these not even a shell starts, and the error would come from somewhere less clear.
MIN_MEMORY_BYTES = 16 * MIB
MIN_PIDS = 4
MIN_CPU_CORES = 0.01
MIN_DISK_BYTES = 1 * MIB
# A renewal a second is no burden.
MIN_LEASE_TTL_S = 1.0


@dataclass(frozen=True)
class Expiry:
    """What the end of a sandbox's time to live is."""

    pause: bool = False
    """It is paused, not destroyed."""
    resume_ttl_s: float | None = None
    """A request of E2B's clients for it while it is paused resumes it, for so long; None: not."""


DESTROY = Expiry()


@dataclass(frozen=True)
class CreateOptions:
    """What a client asks for; None takes the default."""

    image: str
    memory_bytes: int | None = None
    pids: int | None = None
    cpu_cores: float | None = None
    disk_bytes: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    hostname: str | None = None
    ttl_s: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    lease: str = ""
    """It goes when that one ends."""
    ephemeral: bool = False
    """It goes with the command that it is made for, or with who waits for that."""
    expiry: Expiry = DESTROY

    def over(self, image: ImageDefaults) -> CreateOptions:
        """What holds in a sandbox of that image: its own, where nothing else is asked for."""
        return dataclasses.replace(
            self,
            env={**image.env, **self.env},
            cwd=self.cwd or image.cwd,
            user=self.user or image.user,
        )


def checked_limits(config: Config, options: CreateOptions, *, limits_disk: bool) -> Limits:
    """The limits that will hold, or `InvalidRequest`. `limits_disk`: the storage can do that."""
    if options.disk_bytes is not None and not limits_disk:
        raise Unsupported(
            "this node's storage cannot limit a disk",
            operation="create sandbox",
            object="field limits.disk_bytes",
            cause="the storage backend is plain directories",
        )
    limits = Limits(
        memory_bytes=options.memory_bytes or config.default_memory_bytes,
        pids=options.pids or config.default_pids,
        cpu_cores=options.cpu_cores or config.default_cpu_cores,
        disk_bytes=options.disk_bytes or (config.default_disk_bytes if limits_disk else None),
    )
    for name, value, lowest, highest in (
        ("memory_bytes", limits.memory_bytes, MIN_MEMORY_BYTES, config.max_memory_bytes),
        ("pids", limits.pids, MIN_PIDS, config.max_pids),
        ("cpu_cores", limits.cpu_cores, MIN_CPU_CORES, config.max_cpu_cores),
        ("disk_bytes", limits.disk_bytes, MIN_DISK_BYTES, config.max_disk_bytes),
    ):
        if value is not None and not lowest <= value <= highest:
            raise InvalidRequest(
                f"{value:g} is out of bounds",
                operation="create sandbox",
                object=f"field limits.{name}",
                cause=f"it must be between {lowest:g} and {highest:g}",
            )
    return limits


def checked_ttl(config: Config, ttl_s: float | None, operation: str) -> float | None:
    """The time to live that will hold."""
    if ttl_s is not None and not 0 < ttl_s <= config.max_ttl_s:
        raise InvalidRequest(
            f"{ttl_s:g} is out of bounds",
            operation=operation,
            object="field ttl_s",
            cause=f"it must be above 0 and at most {config.max_ttl_s:g}",
        )
    return ttl_s


def checked_lease_ttl(config: Config, ttl_s: float, operation: str) -> float:
    """How long a lease may go without a renewal."""
    if not MIN_LEASE_TTL_S <= ttl_s <= config.max_lease_ttl_s:
        raise InvalidRequest(
            f"{ttl_s:g} is out of bounds",
            operation=operation,
            object="field ttl_s",
            cause=f"it must be between {MIN_LEASE_TTL_S:g} and {config.max_lease_ttl_s:g}",
        )
    return ttl_s


def checked_count(config: Config, count: int) -> int:
    """How many forks one request may ask for."""
    if not 1 <= count <= config.max_forks_per_request:
        raise InvalidRequest(
            f"{count} is out of bounds",
            operation="fork",
            object="field count",
            cause=f"it must be between 1 and {config.max_forks_per_request}",
        )
    return count


def checked_timeout_ms(config: Config, timeout_s: float | None) -> int:
    """A command's timeout in init's unit; without one, the longest that is allowed."""
    if timeout_s is None:
        timeout_s = config.max_exec_timeout_s
    if not 0 < timeout_s <= config.max_exec_timeout_s:
        raise InvalidRequest(
            f"{timeout_s:g} is out of bounds",
            operation="exec",
            object="field timeout_s",
            cause=f"it must be above 0 and at most {config.max_exec_timeout_s:g}",
        )
    # Init counts in milliseconds, and 0 means none.
    return max(1, round(timeout_s * 1000))


def checked_output_bytes(config: Config, max_output_bytes: int | None) -> int:
    """How much output a client gets; more is drained and counted."""
    limit = config.max_exec_output_bytes
    if max_output_bytes is None:
        return limit
    if not 0 <= max_output_bytes <= limit:
        raise InvalidRequest(
            f"{max_output_bytes} is out of bounds",
            operation="exec",
            object="field max_output_bytes",
            cause=f"it must be at most {limit}",
        )
    return max_output_bytes
