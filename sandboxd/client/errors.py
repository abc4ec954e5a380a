"""Errors of the client.

What the daemon refuses comes as the classes of `sandboxd.errors`. Here stand the three that only
a client can have: the daemon could not be reached, the connection was cut, and a command ended
otherwise than with exit code 0.
"""

from __future__ import annotations

from sandboxd.client.types import CommandResult
from sandboxd.errors import OperationTimeout, VenusError


class DaemonUnavailable(VenusError):
    """Nobody answers at the socket, or the caller may not open it."""

    code = "daemon_unavailable"
    http_status = 503


class ConnectionLost(VenusError):
    """The connection ended before the answer did; the outcome of the request is unknown."""

    code = "connection_lost"
    http_status = 502


class CommandExitError(VenusError):
    """A command ended with another exit code than 0, or by a signal; carries the whole result."""

    code = "command_exit"
    http_status = 200

    def __init__(self, command: str, result: CommandResult) -> None:
        how = (
            f"signal {result.signal}"
            if result.signal is not None
            else f"exit code {result.exit_code}"
        )
        if result.reason.value not in ("exited", "signaled"):
            how = f"{how} ({result.reason.value})"
        super().__init__(
            f"the command ended with {how}",
            operation="run",
            object=_shortened(command),
            cause=_last_line(result.stderr),
        )
        self.result = result

    @property
    def exit_code(self) -> int:
        return self.result.exit_code

    @property
    def stdout(self) -> str:
        return self.result.stdout

    @property
    def stderr(self) -> str:
        return self.result.stderr


class CommandTimeout(OperationTimeout, TimeoutError):
    """A command was killed at its timeout; carries what it wrote until then."""

    def __init__(self, command: str, timeout_s: float | None, result: CommandResult) -> None:
        super().__init__(
            f"the command was killed after its timeout of {timeout_s:g} s"
            if timeout_s is not None
            else "the command was killed at the daemon's timeout",
            operation="run",
            object=_shortened(command),
        )
        self.result = result


def _shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return _shortened(lines[-1], 200) if lines else ""
