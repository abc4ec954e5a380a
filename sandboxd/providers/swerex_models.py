"""The requests of SWE-ReX's client. Times in seconds; None: no timeout but the daemon's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Timeout = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Patterns = Annotated[list[str], Field(max_length=64)]


class CreateSession(BaseModel):
    session: str = "default"
    session_type: Literal["bash"] = "bash"
    startup_source: list[str] = []
    startup_timeout: Timeout = 1.0


class CloseSession(BaseModel):
    session: str = "default"
    session_type: Literal["bash"] = "bash"


class BashAction(BaseModel):
    action_type: Literal["bash"] = "bash"
    command: str
    session: str = "default"
    timeout: Timeout | None = None
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    check: Literal["silent", "raise", "ignore"] = "raise"
    error_msg: str = ""
    expect: Patterns = []


class BashInterrupt(BaseModel):
    action_type: Literal["bash_interrupt"] = "bash_interrupt"
    session: str = "default"
    timeout: Timeout = 0.2
    n_retry: Annotated[int, Field(ge=0, le=100)] = 3
    expect: Patterns = []


Action = Annotated[BashAction | BashInterrupt, Field(discriminator="action_type")]


class Observation(BaseModel):
    output: str = ""
    exit_code: int | None = None
    failure_reason: str = ""
    expect_string: str = ""
    session_type: Literal["bash"] = "bash"


class Command(BaseModel):
    command: str | list[str]
    timeout: Timeout | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = None
    cwd: str | None = None
    merge_output_streams: bool = False


class CommandResponse(BaseModel):
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None


class ReadFile(BaseModel):
    path: str
    encoding: str | None = None
    errors: str | None = None


class WriteFile(BaseModel):
    path: str
    content: str
