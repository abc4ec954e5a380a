"""What a template is. Pure data, but for the engine's handle of its pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sandboxd import _native
from sandboxd.bounds import CreateOptions
from sandboxd.launch_request import Limits
from sandboxd.templates.pool import FileKey
from sandboxd.templates.recipe import RecipeCommand

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own


@dataclass(frozen=True)
class CapturedCommand:
    """A command that ran in the original, or whose processes still held its pipes.

    `stdin`, `stdout` and `stderr` number the pipes to the daemon that each fork gets anew, in the
    order in which the engine was told of them; None where there is none.
    """

    exec_id: int
    pid: int
    """Of its leader, inside the sandbox; 0 when only others of it are left."""
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    terminal: int | None = None
    """Instead of the others: the terminal whose master the daemon holds."""


@dataclass(frozen=True)
class TemplateRecord:
    """Everything about a template but its pages."""

    template_id: str
    tenant_uid: int
    image: str
    layers: tuple[str, ...]
    """Above the image, the topmost first."""
    limits: Limits
    env: dict[str, str]
    cwd: str
    user: str
    sandbox_id: str
    """What it was captured from."""
    parent: str
    """Template that the sandbox was forked from; empty: none."""
    created_at: float
    labels: dict[str, str]
    counts: dict[str, int]
    """What the capture found: processes, threads, mappings, extent_bytes, inherited_bytes, …"""
    commands: tuple[CapturedCommand, ...] = ()
    exec_generation: int = 0
    last_exec: int = 0
    """Ids of commands up to here, of this generation, are the original's."""
    recipe: str = ""
    """Digest of the recipe that it was built from; empty: it is a snapshot."""
    lease: str = ""
    """It goes when that one ends."""
    on_fork: RecipeCommand | None = None
    """Runs in each fork before its creation is told."""

    def options(self, wanted: CreateOptions) -> CreateOptions:
        """What a fork gets: the template's own, except where `wanted` says otherwise."""
        return CreateOptions(
            image=self.image,
            memory_bytes=wanted.memory_bytes or self.limits.memory_bytes,
            pids=wanted.pids or self.limits.pids,
            cpu_cores=wanted.cpu_cores or self.limits.cpu_cores,
            disk_bytes=wanted.disk_bytes or self.limits.disk_bytes,
            env={**self.env, **wanted.env},
            cwd=wanted.cwd or self.cwd,
            user=wanted.user or self.user,
            hostname=wanted.hostname,
            ttl_s=wanted.ttl_s,
            labels=wanted.labels,
            lease=wanted.lease,
            ephemeral=wanted.ephemeral,
            expiry=wanted.expiry,
        )


@dataclass(frozen=True, eq=False)
class Template:
    """A template that can be forked. There is one such object of each."""

    record: TemplateRecord
    native: _native.Template = field(repr=False)

    @property
    def template_id(self) -> str:
        """Its id."""
        return self.record.template_id

    @cached_property
    def files(self) -> Mapping[FileKey, int]:
        """Its share of the pool: sealed files, some of which other templates refer to as well, and
        the memory that each takes, in bytes. They never change."""
        found = (os.fstat(descriptor) for descriptor in self.native.descriptors())
        return {(each.st_dev, each.st_ino): each.st_blocks * _BLOCK_BYTES for each in found}

    @property
    def shared_bytes(self) -> int:
        """Memory that its forks have in common, once."""
        return sum(self.files.values())
