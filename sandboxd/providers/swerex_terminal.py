"""A terminal with bash, read up to the marks that bash prints before it prompts.

A mark names the command that it is the end of: Ctrl-C makes bash prompt once more, and that mark
must not end the next command.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Self

from sandboxd.client import AsyncCommandHandle, AsyncSandbox, VenusError
from sandboxd.providers.swerex_errors import SwerexError

PROMPT = "SHELLPS1PREFIX"
"""What SWE-ReX's own sessions say was matched when bash prompts."""
MAX_OUTPUT_BYTES = 16 << 20
"""What is kept of output that nobody has taken yet: the end."""
_OVERLAP_BYTES = 4096
# No output is changed and no input comes back.
_COMMAND = "stty -echo -onlcr; exec bash --noediting -i"
_ROWS_AND_COLUMNS = (24, 80)
_ESCAPES = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


class Terminal:
    """For one reader at a time."""

    def __init__(self, handle: AsyncCommandHandle) -> None:
        self.nonce = secrets.token_hex(16)
        self.prompting = False
        """Bash has prompted, and nothing was typed since."""
        self.exit_code = 0
        """Of the last command that ended."""
        self.shell_pid = 0
        self._handle = handle
        # The number of the command, its exit code, the pid of bash.
        self._mark = re.compile(rb"\x1e" + self.nonce.encode() + rb":(\d+):(\d+):(\d+)\x1e")
        self._number = 0
        self._output = bytearray()
        self._searched = 0
        self._news = asyncio.Event()
        self._ended = False
        self._reader = asyncio.create_task(self._read(), name="venus-swerex-terminal")

    @classmethod
    async def open(cls, sandbox: AsyncSandbox) -> Self:
        variables = {"PS1": "", "PS2": "", "TERM": "dumb"}
        handle = await sandbox.commands.run(_COMMAND, True, envs=variables, pty=_ROWS_AND_COLUMNS)
        return cls(handle)

    async def close(self) -> None:
        """Ends bash and all that it started."""
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._handle.disconnect()

    async def begin(self) -> None:
        """Returns when bash prompts, from now on with marks."""
        mark = rf"printf '\036%s:%d:%d:%d\036' {self.nonce} \$_venus \$? \$\$"
        await self.type(f' _venus=0 PROMPT_COMMAND="{mark}; PS1= PS2="\n')
        await self.until([])

    async def command(self, line: str, expect: list[str]) -> tuple[str, str]:
        """As `until`, of a line that bash reads when it prompts."""
        self._number += 1
        self.prompting = False
        await self.type(f" _venus={self._number}; {line}\n")
        return await self.until(expect)

    async def input(self, line: str, expect: list[str]) -> tuple[str, str]:
        """As `until`, of a line for whatever program reads it."""
        if self.prompting:
            self.prompting = False
            self._output.clear()
        await self.type(f"{line}\n")
        return await self.until(expect)

    async def type(self, text: str | bytes) -> None:
        if self._ended:
            raise self._end()
        await self._handle.send_stdin(text)

    async def until(self, expect: list[str]) -> tuple[str, str]:
        """What comes before bash prompts, or before one of the patterns; and which it was."""
        patterns = [(each, re.compile(each.encode(), re.DOTALL)) for each in expect]
        self._searched = 0
        while True:
            self._news.clear()
            start = max(0, self._searched - _OVERLAP_BYTES)
            found = [(m, name) for name, p in patterns if (m := p.search(self._output, start))]
            marks = self._mark.finditer(self._output, start)
            found += [(m, PROMPT) for m in marks if int(m[1]) == self._number][:1]
            if found:
                match, name = min(found, key=lambda each: each[0].start())
                if name is PROMPT:
                    self.prompting = True
                    self.exit_code, self.shell_pid = int(match[2]), int(match[3])
                output = bytes(self._output[: match.start()])
                self._output = self._output[match.end() :]
                return self._text(output), name
            if self._ended:
                raise self._end()
            self._searched = len(self._output)
            await self._news.wait()

    def _text(self, output: bytes) -> str:
        text = self._mark.sub(b"", output).decode("utf-8", "backslashreplace")
        return _ESCAPES.sub("", text).replace("\r\n", "\n")

    def _end(self) -> SwerexError:
        rest = self._text(bytes(self._output))
        message = f"the session's shell has ended. Here is its last output:\n{rest!r}"
        return SwerexError("SessionNotInitializedError", message)

    async def _read(self) -> None:
        try:
            async for piece in self._handle:
                self._output += piece.data
                excess = len(self._output) - MAX_OUTPUT_BYTES
                if excess > 0:
                    self._output = self._output[excess:]
                    self._searched = max(0, self._searched - excess)
                self._news.set()
        except VenusError:
            pass  # as when it ends by itself
        finally:
            self._ended = True
            self._news.set()
