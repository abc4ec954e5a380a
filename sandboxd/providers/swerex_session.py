"""A shell that keeps its state between commands: bash at a terminal in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from sandboxd.client import AsyncSandbox, VenusError
from sandboxd.providers.swerex_errors import SwerexError
from sandboxd.providers.swerex_models import BashAction, BashInterrupt, Observation
from sandboxd.providers.swerex_terminal import PROMPT, Terminal

# Beyond what a client gives a shell to start, by default a second.
_START_S = 10.0
# How long the end of a killed program may take.
_KILL_S = 10.0
_KILL_FOREGROUND = 'set -- $(cat /proc/$1/stat); [ "$8" = "$5" ] || kill -9 "-$8"'


class BashSession:
    """Serves one action at a time; an interrupt comes in between."""

    def __init__(self, sandbox: AsyncSandbox, terminal: Terminal) -> None:
        self.started_with = ""
        """What it wrote while it started."""
        self._sandbox = sandbox
        self._terminal = terminal
        self._script = f"/tmp/.venus-session-{terminal.nonce}"
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, sandbox: AsyncSandbox, sources: list[str], timeout_s: float) -> Self:
        """The session, after it has read the files `sources`."""
        session = cls(sandbox, await Terminal.open(sandbox))
        try:
            await session._begin(sources, timeout_s + _START_S)
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """Ends the shell and all that it started."""
        await self._terminal.close()
        with contextlib.suppress(VenusError):
            await self._sandbox.files.remove(self._script)

    async def run(self, action: BashAction) -> Observation:
        """Errors: `SwerexError` of the kinds that SWE-ReX documents. After a timeout the command
        runs on, until an interrupt; the next one waits for it."""
        async with self._turn:
            try:
                async with asyncio.timeout(action.timeout):
                    if action.is_interactive_command or action.is_interactive_quit:
                        return await self._run_interactive(action)
                    return await self._run(action)
            except TimeoutError:
                message = f"timeout after {action.timeout} seconds while running {action.command!r}"
                raise SwerexError("CommandTimeoutError", message) from None

    async def interrupt(self, action: BashInterrupt) -> Observation:
        """Ctrl-C; when that does not help, SIGKILL for what is in the foreground."""
        for _ in range(action.n_retry):
            if not self._terminal.prompting:
                await self._terminal.type(b"\x03")
            with contextlib.suppress(TimeoutError):
                return await self._interrupted(action.expect, action.timeout)
        kill = ["/bin/sh", "-c", _KILL_FOREGROUND, "sh", str(self._terminal.shell_pid)]
        await self._sandbox.commands.run(kill, user="root", cwd="/", check=False)
        try:
            return await self._interrupted(action.expect, _KILL_S)
        except TimeoutError:
            raise SwerexError("CommandTimeoutError", "Failed to interrupt session") from None

    async def _interrupted(self, expect: list[str], timeout_s: float) -> Observation:
        """Who waits for the command sees its end; when nobody does, it is seen here."""
        async with asyncio.timeout(timeout_s), self._turn:
            output, matched = "", PROMPT
            if not self._terminal.prompting:
                output, matched = await self._terminal.until(expect)
            return Observation(output=output.strip(), exit_code=0, expect_string=matched)

    async def _begin(self, sources: list[str], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._terminal.begin()
        except TimeoutError:
            raise SwerexError("CommandTimeoutError", "the shell does not start") from None
        if sources:
            command = " ; ".join(f"source {path}" for path in sources)
            action = BashAction(command=command, check="ignore", timeout=timeout_s)
            self.started_with = (await self.run(action)).output

    async def _run(self, action: BashAction) -> Observation:
        await self._check_syntax(action.command)
        terminal = self._terminal
        before = "" if terminal.prompting else (await terminal.until([]))[0]
        await self._sandbox.files.write(self._script, action.command, mode=0o600)
        # The exit code before stays what the command sees.
        line = f'eval "(exit {terminal.exit_code}); $(<{self._script})"'
        output, matched = await terminal.command(line, action.expect)
        output = before + output
        code = terminal.exit_code if terminal.prompting else None
        told = f"Here is the output:\n{output!r}"
        prefix = f"{action.error_msg}: " if action.error_msg else ""
        if action.check == "raise" and code is None:
            message = f"{prefix}{action.command!r} has not ended, so it has no exit code. {told}"
            raise SwerexError("NoExitCodeError", message)
        if action.check == "raise" and code != 0:
            message = f"{prefix}Command {action.command!r} failed with exit code {code}. {told}"
            raise SwerexError("NonZeroExitCodeError", message)
        if action.check == "ignore":
            code = None
        return Observation(output=output, exit_code=code, expect_string=matched)

    async def _run_interactive(self, action: BashAction) -> Observation:
        output, matched = await self._terminal.input(action.command, action.expect)
        if action.is_interactive_quit:
            if not self._terminal.prompting:
                await self._terminal.until([])
            # The program may have left the terminal otherwise.
            await self._terminal.command("stty -echo -onlcr", [])
        else:
            output = output.lstrip().removeprefix(action.command).strip()
        return Observation(output=output, exit_code=0, expect_string=matched)

    async def _check_syntax(self, command: str) -> None:
        done = await self._sandbox.commands.run(["bash", "-n"], stdin=command, check=False)
        if done.exit_code:
            message = (
                f"Error (exit code {done.exit_code}) while checking bash command \n{command!r}\n"
                f"---- Stderr ----\n{done.stderr}\n---- Stdout ----\n{done.stdout}"
            )
            told = {"bash_stdout": done.stdout, "bash_stderr": done.stderr}
            raise SwerexError("BashIncorrectSyntaxError", message, **told)
