"""Bodies of the API about commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from sandboxd.api.models import MAX_ENV_ENTRIES, Body, EnvName, EnvValue, UserName
from sandboxd.terminal import MAX_COLUMNS, MAX_ROWS

ExitReason = Literal["exited", "signaled", "timeout", "oom", "killed", "lost"]


class TerminalSizeRequest(Body):
    """Of a terminal, in characters."""

    rows: int = Field(ge=1, le=MAX_ROWS)
    cols: int = Field(ge=1, le=MAX_COLUMNS)


class StartCommandRequest(Body):
    """A command that needs no client; exactly one of `argv` and `command`."""

    argv: list[str] | None = Field(default=None, min_length=1, max_length=8192)
    command: str | None = Field(default=None, description="a line for /bin/sh")
    env: dict[EnvName, EnvValue] | None = Field(default=None, max_length=MAX_ENV_ENTRIES)
    cwd: str | None = Field(default=None, max_length=4095)
    user: UserName | None = None
    timeout_s: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="null: the longest that is allowed"
    )
    stdin: bool = Field(default=False, description="its input is open; otherwise it reads its end")
    pty: TerminalSizeRequest | None = Field(
        default=None,
        description="it gets a terminal, which is its input and all of its output (stdout)",
    )

    @field_validator("argv")
    @classmethod
    def _has_a_program(cls, argv: list[str] | None) -> list[str] | None:
        if argv is not None and not argv[0]:
            raise ValueError("the program's name is empty")
        return argv


class SignalRequest(Body):
    """A signal for a running command."""

    signal: int = Field(ge=1, le=64)
    whole_tree: bool = False


class CommandInfo(Body):
    """A command that the daemon knows of: it runs, or others of it still hold its output, or it was
    kept and has ended lately."""

    exec_id: int
    pid: int = Field(description="inside the sandbox; 0: its leader ended before the fork")
    argv: list[str] = Field(
        description="shortened; empty where this daemon did not start it in this sandbox"
    )
    running: bool
    kept: bool = Field(description="its output can be read and attached to")
    inherited: bool = Field(description="it came with a fork")
    pty: bool = Field(description="it has a terminal")
    exit_code: int | None
    signal: int | None
    reason: ExitReason | None = Field(description="why a kept one is over")
    stdout_bytes: int = Field(description="written so far, in this sandbox")
    stderr_bytes: int


class CommandList(Body):
    """The commands of a sandbox."""

    commands: list[CommandInfo]


class CommandEnd(Body):
    """How a command ended, as the EXIT frame tells it."""

    exit_code: int | None
    signal: int | None
    reason: ExitReason
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    duration_s: float
    user_cpu_s: float
    system_cpu_s: float
    max_rss_bytes: int
