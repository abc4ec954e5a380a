"""redis under load, purging its memory and rewriting its file: forks go on and stay apart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Self

from sandboxd.client import Sandbox
from tests.support.conversation import PATIENCE_S, Conversation

LOAD = Path(__file__).parent / "inside" / "redis_load.py"
SERVER = (
    "exec redis-server --dir /srv --save '' --appendonly yes --appendfsync no"
    " --auto-aof-rewrite-percentage 0 --jemalloc-bg-thread yes --enable-debug-command yes"
)


class LoadedRedis:
    """A server with its load, in one sandbox."""

    def __init__(self, sandbox: Sandbox, talk: Conversation) -> None:
        self.sandbox = sandbox
        self._talk = talk

    @classmethod
    def start(cls, sandbox: Sandbox) -> Self:
        sandbox.files.write("/root/load.py", LOAD.read_text())
        Conversation.start(sandbox, ["sh", "-c", SERVER]).expect("Ready to accept connections")
        talk = Conversation.start(sandbox, ["python3", "/root/load.py"])
        talk.expect("ready$")
        return cls(sandbox, talk)

    def fork(self, count: int = 1) -> list[Self]:
        made = self.sandbox.fork(count)
        return [type(self)(each, Conversation.inherited(each, self._talk.exec_id)) for each in made]

    def ask(self, command: str) -> object:
        name = command.split()[0]
        return json.loads(self._talk.ask(command, rf"^{name} (.*)$")[1])

    def work(self, batches: int) -> None:
        """Waits until it has written so much more."""
        before, deadline = self.ask("batches"), time.monotonic() + PATIENCE_S
        assert isinstance(before, int)
        while True:
            now = self.ask("batches")
            assert isinstance(now, int) and time.monotonic() < deadline
            if now >= before + batches:
                return

    def check(self, marks: list[str]) -> None:
        """It serves, has what it must have and nothing of others, in memory and in its files."""
        assert self.ask("marks") == marks
        assert self.ask("check") == []
        self.work(30)
        assert self.ask("reload") == ["OK", True]
        assert self.ask("marks") == marks
        self.work(30)
        assert self.ask("check") == []


def test_redis_under_load(programs_sandbox: Sandbox) -> None:
    original = LoadedRedis.start(programs_sandbox)
    original.work(300)
    original.ask("mark original-before")
    forks = original.fork(2)
    try:
        original.ask("mark original-after")
        for number, fork in enumerate(forks):
            fork.ask(f"mark fork-{number}")
        forks[0].work(100)
        forks += forks[0].fork()
        forks[0].ask("mark fork-0-after")
        forks[2].ask("mark fork-of-fork")
        before = "original-before"
        expected = [
            (original, [before, "original-after"]),
            (forks[0], [before, "fork-0", "fork-0-after"]),
            (forks[1], [before, "fork-1"]),
            (forks[2], [before, "fork-0", "fork-of-fork"]),
        ]
        for each, marks in expected:
            each.check(marks)
    finally:
        for fork in forks:
            fork.sandbox.kill()
    original.check(["original-before", "original-after"])
