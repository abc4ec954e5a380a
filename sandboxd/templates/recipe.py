"""What a template can be built from, and the name of the result. Pure.

Two recipes of one tenant that would give the same template have the same digest, however they were
written: it is taken of a canonical form, of what the image or template at the bottom is, and of
nothing that does not change the result (labels).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field

from sandboxd.bounds import CreateOptions

READY_PAUSE_S = 0.05


@dataclass(frozen=True)
class RecipeFile:
    """A file to write before anything runs."""

    path: str
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class RecipeCommand:
    """A command to run to its end; it must end with exit code 0."""

    argv: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class WarmCommand:
    """A command that is left running. It is warm once `ready` ends with exit code 0; without one,
    as soon as it has been started."""

    argv: tuple[str, ...]
    ready: tuple[str, ...] | None
    timeout_s: float
    """For becoming ready."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a build is told."""

    options: CreateOptions
    """Image, limits, environment, directory, user; those of the template where there is one."""
    template: str = ""
    """Id of the template that it stands on; empty: on the image alone."""
    files: tuple[RecipeFile, ...] = ()
    setup: tuple[RecipeCommand, ...] = ()
    warm: tuple[WarmCommand, ...] = ()
    on_fork: RecipeCommand | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def digest(self, origin: str) -> str:
        """SHA-256 of the canonical form. `origin` names what the image or template holds."""
        table = dataclasses.asdict(self)
        del table["labels"], table["template"]
        for name in ("labels", "ttl_s", "hostname"):
            del table["options"][name]
        for each in table["files"]:
            each["content"] = hashlib.sha256(each["content"]).hexdigest()
        form = json.dumps({"origin": origin, **table}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(form.encode()).hexdigest()
