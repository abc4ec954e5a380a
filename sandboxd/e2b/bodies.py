"""Bodies of E2B's control plane. Fields that a newer client knows beyond these are passed over."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sandboxd.api import models
from sandboxd.bounds import Expiry
from sandboxd.e2b.envd import ENVD_VERSION
from sandboxd.e2b.keys import ApiKey
from sandboxd.errors import Unsupported
from sandboxd.launched import Usage
from sandboxd.lifecycle import State
from sandboxd.registry import SandboxRecord
from sandboxd.sandbox import LiveSandbox

MAX_TIMEOUT_S = 1 << 31
_MIB = 1 << 20
_NEVER = datetime(9999, 12, 31, tzinfo=UTC)
DEFAULT_TIMEOUT_S = 300
DEFAULT_FORK_TIMEOUT_S = 15
"""What E2B documents for a request that names none."""

Timeout = Annotated[int, Field(ge=0, le=MAX_TIMEOUT_S)]
TemplateName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class AutoResume(_Body):
    """Whether a paused sandbox goes on when it is asked for something."""

    enabled: bool = False


class NewSandbox(_Body):
    """A create."""

    template_id: TemplateName = Field(alias="templateID")
    timeout: Timeout = DEFAULT_TIMEOUT_S
    metadata: dict[models.LabelKey, models.LabelValue] = Field(
        default_factory=dict, max_length=models.MAX_LABELS
    )
    env_vars: dict[models.EnvName, models.EnvValue] = Field(
        default_factory=dict, alias="envVars", max_length=models.MAX_ENV_ENTRIES
    )
    auto_pause: bool = Field(default=False, alias="autoPause")
    auto_pause_memory: bool = Field(default=True, alias="autoPauseMemory")
    auto_resume: AutoResume = Field(default_factory=AutoResume, alias="autoResume")
    allow_internet_access: bool | None = None
    network: Any = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: Any = Field(default=None, alias="volumeMounts")

    def check_supported(self) -> None:
        """`Unsupported` names what was asked for and is not to be had."""
        for name, asked in (
            ("autoPauseMemory", self.auto_pause and not self.auto_pause_memory),
            ("allow_internet_access", self.allow_internet_access),
            ("network", self.network),
            ("mcp", self.mcp),
            ("iam", self.iam),
            ("volumeMounts", self.volume_mounts),
        ):
            if asked:
                raise Unsupported(
                    f"{name} is not supported", operation="create sandbox", object=f"field {name}"
                )

    def expiry(self) -> Expiry:
        """As E2B has it: resumed by a request it lives as long as it was made for, and five minutes
        at least."""
        resumes = self.auto_pause and self.auto_resume.enabled
        ttl_s = float(max(self.timeout, DEFAULT_TIMEOUT_S)) if resumes else None
        return Expiry(pause=self.auto_pause, resume_ttl_s=ttl_s)


class TimeoutBody(_Body):
    """A new time to live."""

    timeout: Timeout


class ConnectBody(_Body):
    """A connect or resume."""

    timeout: Timeout = DEFAULT_TIMEOUT_S
    memory: bool = True


class PauseBody(_Body):
    """A pause."""

    memory: bool = True


class ForkBody(_Body):
    """A fork."""

    timeout: Timeout = DEFAULT_FORK_TIMEOUT_S
    count: Annotated[int, Field(ge=1)] = 1


class SnapshotBody(_Body):
    """A snapshot."""

    name: Name | None = None
    memory: bool = True


def sandbox_of(sandbox: LiveSandbox, key: ApiKey) -> dict[str, Any]:
    """What a create or connect answers: with the token that lets its holder in."""
    assert sandbox.record is not None
    return {
        **_identity(sandbox),
        "clientID": "sandboxd",
        "envdAccessToken": key.token(sandbox.sandbox_id),
        "trafficAccessToken": None,
        "domain": None,
    }


def listed_sandbox(sandbox: LiveSandbox) -> dict[str, Any]:
    """What a list has of each."""
    record = sandbox.record
    assert record is not None
    expires_at = sandbox.expires_at()
    end = _NEVER if expires_at is None else datetime.fromtimestamp(expires_at, UTC)
    return {
        **_identity(sandbox),
        "clientID": "sandboxd",
        "startedAt": _stamp(started_at(record)),
        "endAt": _stamp(end),
        "cpuCount": max(1, math.ceil(record.cpu_cores)),
        "memoryMB": record.memory_bytes // _MIB,
        "diskSizeMB": (record.disk_bytes or 0) // _MIB,
        "state": state_of(sandbox),
        "metadata": record.labels,
    }


def sandbox_detail(sandbox: LiveSandbox, key: ApiKey) -> dict[str, Any]:
    """Of one sandbox."""
    record = sandbox.record
    assert record is not None
    paused = {"pauseMode": "full"} if sandbox.state is State.PAUSED else {}
    return {
        **listed_sandbox(sandbox),
        **paused,
        "envdAccessToken": key.token(sandbox.sandbox_id),
        "domain": None,
        "allowInternetAccess": False,
        "lifecycle": {
            "autoResume": record.resume_ttl_s is not None,
            "onTimeout": "pause" if record.pause_on_expiry else "kill",
        },
    }


def metric(sandbox: LiveSandbox, usage: Usage, now: float) -> dict[str, Any]:
    """What it uses now; of the cpu, the average since it began."""
    record = sandbox.record
    assert record is not None
    age_s = max(0.001, now - record.created_at)
    return {
        "timestamp": _stamp(datetime.fromtimestamp(now, UTC)),
        "timestampUnix": int(now),
        "cpuCount": max(1, math.ceil(record.cpu_cores)),
        "cpuUsedPct": round(100 * usage.cpu_s / age_s, 2),
        "memUsed": usage.memory_bytes,
        "memTotal": record.memory_bytes,
        "memCache": max(0, usage.memory_bytes - usage.private_bytes),
        "diskUsed": usage.disk_bytes or 0,
        "diskTotal": record.disk_bytes or 0,
    }


def state_of(sandbox: LiveSandbox) -> str:
    """`running` or `paused`."""
    return "paused" if sandbox.state is State.PAUSED else "running"


def started_at(record: SandboxRecord) -> datetime:
    """When it was made, as precisely as clients are told."""
    return datetime.fromtimestamp(record.created_at, UTC)


def template_of(sandbox: LiveSandbox) -> str:
    """What it was made from: a template's id, or an image's name."""
    assert sandbox.record is not None
    return sandbox.record.template or sandbox.record.image


def _identity(sandbox: LiveSandbox) -> dict[str, Any]:
    assert sandbox.record is not None
    return {
        "templateID": template_of(sandbox),
        "alias": sandbox.record.image,
        "sandboxID": sandbox.sandbox_id,
        "envdVersion": ENVD_VERSION,
    }


def _stamp(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
