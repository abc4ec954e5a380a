"""The sandbox of one episode: made, prepared, acted in, judged, removed.

Everything here may raise `VenusError`; deciding what that means is the runner's.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from sandboxd.client import AsyncSandbox, CommandResult, ExitReason
from sandboxd.errors import ExecFailed
from venusrl.episode.record import SandboxTimes

WORK_DIRECTORY = "/root/work"

# The shell's own messages and the order of both streams must be as in a terminal, so a shell of
# its own gets the merged stream as its output.
_MERGED = f'cd {WORK_DIRECTORY} && exec /bin/sh -c "$1" 2>&1'
_PREPARE = f"mkdir -p {WORK_DIRECTORY} && cd {WORK_DIRECTORY} || exit 125\n"
# Without the directory there is nothing left to judge: not solved.
_JUDGE = f"cd {WORK_DIRECTORY} 2>/dev/null || exit 1\n"
_RUN_LABEL = "venusrl-run"
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
    # Creates at once. The daemon makes a few at a time; the others wait here, where waiting is
    # bounded by the episode's deadline and not by a request's timeout.
    concurrent_creates: int = 8
    command_timeout_s: float = 10.0
    script_timeout_s: float = 30.0


class EpisodeSandbox(Protocol):
    """What the runner needs; a fake stands in for it in unit tests."""

    async def prepare(self, script: str) -> None: ...

    async def run(self, command: str, *, max_output_bytes: int) -> CommandOutcome: ...

    async def verify(self, script: str) -> bool: ...

    async def kill(self) -> None: ...


class SandboxSource(Protocol):
    async def create(self, times: SandboxTimes) -> EpisodeSandbox: ...


class DaemonSandboxes:
    """Makes sandboxes at one daemon and counts the programs run in them."""

    def __init__(self, settings: SandboxSettings, counter: CommandCounter) -> None:
        self._settings = settings
        self._counter = counter
        self._creates = asyncio.Semaphore(settings.concurrent_creates)

    async def create(self, times: SandboxTimes) -> "DaemonSandbox":
        settings = self._settings
        started = time.monotonic()
        async with self._creates:
            requested = time.monotonic()
            sandbox = await AsyncSandbox.create(
                settings.image,
                memory_bytes=settings.memory_bytes,
                pids=settings.pids,
                timeout=settings.ttl_s,
                metadata={_RUN_LABEL: settings.run_label},
                socket=settings.socket,
            )
        times.queue_s = requested - started
        times.create_s = time.monotonic() - requested
        return DaemonSandbox(sandbox, settings, self._counter, times)

    async def sweep(self) -> int:
        """Remove the run's remaining sandboxes: a cancelled request may still have made one."""
        socket = self._settings.socket
        left = await AsyncSandbox.list({_RUN_LABEL: self._settings.run_label}, socket=socket)
        for info in left:
            async with await AsyncSandbox.connect(info.id, socket=socket):
                pass
        return len(left)


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
