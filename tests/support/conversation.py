"""Talks to a command of a sandbox by its input and output, in the original and in forks alike."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from sandboxd.client import Sandbox
from sandboxd.errors import VenusError

PATIENCE_S = 30.0


class Conversation:
    """`expect` finds each answer behind the one before it."""

    def __init__(
        self, send: Callable[[bytes], object], output: Callable[[], bytes], exec_id: int
    ) -> None:
        self.exec_id = exec_id
        self._send = send
        self._output = output
        self._heard = 0

    @classmethod
    def start(cls, sandbox: Sandbox, argv: Sequence[str], **options: str) -> Self:
        """With a command that is started for it, and ends with its sandbox."""
        handle = sandbox.commands.run(list(argv), True, stdin=True, user=options.get("user"))
        said = bytearray()

        def listen() -> None:
            try:
                for output in handle:
                    said.extend(output.data)
            except VenusError:
                pass  # the sandbox was destroyed

        threading.Thread(target=listen, name="conversation", daemon=True).start()
        return cls(handle.send_stdin, lambda: bytes(said), handle.exec_id)

    @classmethod
    def inherited(cls, fork: Sandbox, exec_id: int) -> Self:
        """With what the fork has of a command of its original."""
        return cls(
            lambda data: fork.commands.send_stdin(exec_id, data),
            lambda: fork.commands.output(exec_id),
            exec_id,
        )

    def send(self, text: str | bytes) -> None:
        self._send(text.encode() if isinstance(text, str) else text)

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits for the pattern in what has not been looked at."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            text = self._output().decode("utf-8", "replace")
            found = re.compile(pattern, re.M).search(text, self._heard)
            if found:
                self._heard = found.end()
                return found
            assert time.monotonic() < deadline, f"no {pattern!r} in {text[self._heard :]!r}"
            time.sleep(0.01)

    def ask(self, line: str, pattern: str) -> re.Match[str]:
        self.send(f"{line}\n")
        return self.expect(pattern)
