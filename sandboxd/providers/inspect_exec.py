"""A command in a sandbox, as Inspect wants its result."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import uuid
from collections.abc import AsyncIterator

import anyio
from inspect_ai.util import ExecResult, SandboxEnvironmentLimits, SandboxUnavailableError

from sandboxd.client import AsyncSandbox, ExitReason, VenusError
from sandboxd.errors import ExecFailed, errno_of
from sandboxd.providers.output_tail import OutputTail
from sandboxd.providers.translation import ended_with_sandbox

# One packet to the sandbox's init has 256 KiB, of which environments may take 128.
_MAX_ARGV_BYTES = 128 << 10
_CANNOT_START, _NOT_FOUND = 126, 127


async def execute(
    sandbox: AsyncSandbox,
    cmd: list[str],
    input: str | bytes | None,
    cwd: str | None,
    env: dict[str, str] | None,
    user: str | None,
    timeout: int | None,
) -> ExecResult[str]:
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    output = {"stdout": OutputTail(limit), "stderr": OutputTail(limit)}
    async with contextlib.AsyncExitStack() as stack:
        if sum(len(argument.encode()) + 1 for argument in cmd) > _MAX_ARGV_BYTES:
            cmd = await stack.enter_async_context(_by_script(sandbox, cmd, user))
        started = await sandbox.commands.run(
            cmd,
            True,
            envs=env,
            cwd=cwd,
            user=user,
            timeout=timeout or None,
            stdin=input is not None,
        )
        handle = await stack.enter_async_context(started)
        if input is not None:
            await stack.enter_async_context(handle.feeding(input))
        async for piece in handle:
            output[piece.stream].add(piece.data)
    stdout, stderr = output["stdout"].text(), output["stderr"].text()
    if ended_with_sandbox(handle.exit):
        reason = f"the sandbox ended ({handle.exit.reason}) under {shlex.join(cmd)[:200]}"
        raise SandboxUnavailableError(reason)
    if handle.exit.reason is ExitReason.TIMEOUT:
        late = TimeoutError(f"Command timed out after {timeout} seconds")
        late.truncated_output = stdout + stderr  # type: ignore[attr-defined]
        raise late
    if ended_with_sandbox(handle.exit):
        raise SandboxUnavailableError(f"the sandbox ended under {shlex.join(cmd)[:200]}")
    if handle.exit.reason is ExitReason.OOM:
        stderr += "killed: out of memory\n"
    code = handle.exit.shell_code
    return ExecResult(success=code == 0, returncode=code, stdout=stdout, stderr=stderr)


@contextlib.asynccontextmanager
async def _by_script(
    sandbox: AsyncSandbox, cmd: list[str], user: str | None
) -> AsyncIterator[list[str]]:
    """Arguments that are too large for a request, in a file from which a shell takes them."""
    path = f"/tmp/.venus-{uuid.uuid4().hex}"
    script = f"exec {shlex.join(cmd)}\n"
    # The user's own: nobody else may say what it runs.
    await sandbox.files.write(path, script, user=user, mode=0o600)
    try:
        yield ["/bin/sh", path]
    finally:
        with anyio.CancelScope(shield=True), contextlib.suppress(VenusError):
            await sandbox.files.remove(path, user=user)


def not_started(program: str, user: str | None, error: ExecFailed) -> ExecResult[str]:
    """What a shell would say of a command that it cannot start."""
    number = errno_of(error)
    if number == errno.EACCES:
        raise PermissionError(number, os.strerror(number), program) from error
    about = f"user {user}" if error.cause.startswith("step user") else program
    code = _NOT_FOUND if number == errno.ENOENT else _CANNOT_START
    return ExecResult(False, code, "", f"{about}: {error}\n")
