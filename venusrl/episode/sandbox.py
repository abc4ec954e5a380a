"""The sandbox of one episode: made, prepared, acted in, judged, removed.

Everything here may raise `VenusError`; deciding what that means is the runner's.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sandboxd.client import AsyncLease, AsyncSandbox, AsyncTemplate, CommandResult, ExitReason
from sandboxd.errors import ExecFailed
from venusrl.episode.record import SandboxTimes

WORK_DIRECTORY = "/root/work"

# The shell's own messages and the order of both streams must be as in a terminal, so a shell of
# its own gets the merged stream as its output.
_MERGED = f'cd {WORK_DIRECTORY} && exec /bin/sh -c "$1" 2>&1'
_PREPARE = f"mkdir -p {WORK_DIRECTORY} && cd {WORK_DIRECTORY} || exit 125\n"
# Without the directory there is nothing left to judge: not solved.
_JUDGE = f"cd {WORK_DIRECTORY} 2>/dev/null || exit 1\n"
_MAX_SCRIPT_OUTPUT_BYTES = 64 * 1024


class SandboxFailure(Exception):
    """Setup failed, a command's end was lost, or the verifier ended otherwise than with 0 or 1."""


@dataclass
class CommandCounter:
    """Programs that the daemon said it started: setups, commands, verifiers."""

    started: int = 0


@dataclass(frozen=True)
class CommandOutcome:
    """``total_bytes`` is all that the command wrote; ``output`` may hold less."""

    output: bytes
    total_bytes: int
    reason: ExitReason
    exit_code: int


@dataclass(frozen=True)
class SandboxSettings:
    """``None`` takes the daemon's default. Time to live exceeds every episode's deadline."""

    image: str = "base"
    socket: str | None = None
    # Marks the sandboxes of this run, so that it can find what it left.
    run_label: str = ""
    memory_bytes: int | None = 256 << 20
    pids: int | None = 64
    ttl_s: float = 900.0
    # What the run made goes when nobody has renewed its lease for so long.
    lease_ttl_s: float = 120.0
    # Creates at once. The daemon makes a few at a time; the others wait here, where waiting is
    # bounded by the episode's deadline and not by a request's timeout.
    concurrent_creates: int = 8
    # Of a group, prepare one sandbox and fork it for each sample; else prepare each anew.
    prepare_once: bool = True
    command_timeout_s: float = 10.0
    script_timeout_s: float = 30.0


class EpisodeSandbox(Protocol):
    """What the runner needs; a fake stands in for it in unit tests."""

    async def prepare(self, script: str) -> None: ...

    async def run(self, command: str, *, max_output_bytes: int) -> CommandOutcome: ...

    async def verify(self, script: str) -> bool: ...

    async def kill(self) -> None: ...


class SandboxSource(Protocol):
    """``group`` and ``siblings``: who will ask for a sandbox with the same preparation."""

    async def create(
        self, times: SandboxTimes, *, group: str, trajectory: str, siblings: int
    ) -> EpisodeSandbox: ...


class DaemonSandbox:
    def __init__(
        self,
        sandbox: AsyncSandbox,
        settings: SandboxSettings,
        counter: CommandCounter,
        times: SandboxTimes,
    ) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._counter = counter
        self._times = times

    async def prepare(self, script: str) -> None:
        started = time.monotonic()
        result = await self._script(_PREPARE + script)
        self._times.setup_s = time.monotonic() - started
        if not result.ok:
            raise self._failure("prepare", result)

    async def run(self, command: str, *, max_output_bytes: int) -> CommandOutcome:
        started = time.monotonic()
        result = await self._exec(
            ["/bin/sh", "-c", _MERGED, "/bin/sh", command],
            timeout_s=self._settings.command_timeout_s,
            max_output_bytes=max_output_bytes,
        )
        self._times.commands_s.append(time.monotonic() - started)
        if result.reason is ExitReason.LOST:
            raise self._failure("run a command", result)
        # stderr holds only what went wrong before the streams were merged.
        return CommandOutcome(
            output=result.stdout_bytes + result.stderr_bytes,
            total_bytes=result.exit.stdout_bytes + result.exit.stderr_bytes,
            reason=result.reason,
            exit_code=result.exit_code,
        )

    async def verify(self, script: str) -> bool:
        started = time.monotonic()
        try:
            result = await self._script(_JUDGE + script)
        except ExecFailed:
            # The sandbox lives but its shell is gone: the policy's doing, and no solution.
            return False
        self._times.verify_s = time.monotonic() - started
        if result.reason is ExitReason.EXITED and result.exit_code in (0, 1):
            return result.exit_code == 0
        raise self._failure("verify", result)

    async def snapshot(self, labels: Mapping[str, str], lease: AsyncLease) -> AsyncTemplate:
        """What the preparation left, to be forked."""
        return await self._sandbox.snapshot(labels, lease=lease)

    async def kill(self) -> None:
        started = time.monotonic()
        try:
            await self._sandbox.kill()
        finally:
            await self._sandbox.close()
        self._times.kill_s = time.monotonic() - started

    async def _script(self, script: str) -> CommandResult:
        return await self._exec(
            ["/bin/sh", "-c", script],
            timeout_s=self._settings.script_timeout_s,
            max_output_bytes=_MAX_SCRIPT_OUTPUT_BYTES,
        )

    async def _exec(
        self, argv: list[str], *, timeout_s: float, max_output_bytes: int
    ) -> CommandResult:
        # In two steps, because the count must hold also where reading the output fails.
        handle = await self._sandbox.commands.run(
            argv,
            background=True,
            cwd="/",
            timeout=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        self._counter.started += 1
        async with handle:
            return await handle.wait(check=False)

    def _failure(self, operation: str, result: CommandResult) -> SandboxFailure:
        said = (result.stderr_bytes or result.stdout_bytes)[-300:].decode("utf-8", "replace")
        return SandboxFailure(
            f"{operation} in sandbox {self._sandbox.sandbox_id}: {result.reason.value}, "
            f"exit code {result.exit_code}: {said.strip()}"
        )
