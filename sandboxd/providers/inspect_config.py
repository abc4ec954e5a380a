"""What may be said of the sandboxes of an Inspect task."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict


class VenusSandboxConfig(BaseModel, frozen=True):
    """What each sandbox is made of: the arguments of `AsyncSandbox.create`."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    template: str | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    cpu_cores: float | None = None
    disk_bytes: int | None = None
    envs: dict[str, str] | None = None
    cwd: str | None = None
    user: str | None = None
    hostname: str | None = None
    timeout: float | None = None
    """Time to live in seconds: also without Inspect, it does not live longer."""
    socket: str | None = None

    @classmethod
    def of(cls, config: BaseModel | str | None) -> Self:
        """A string is a YAML (or JSON) file of these fields, or the name of an image."""
        if isinstance(config, str):
            if config.endswith((".yaml", ".yml", ".json")):
                return cls(**yaml.safe_load(Path(config).read_text()))
            # Inspect makes a path of it, below the task's directory.
            return cls(image=Path(config).name)
        return cls() if config is None else cls.model_validate(config)
