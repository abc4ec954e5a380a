"""Node's HTTP server and its client on connections that stay: they go on in every fork."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Self

from sandboxd.client import Sandbox
from tests.support.conversation import PATIENCE_S, Conversation

INSIDE = Path(__file__).parent / "inside"


class Client:
    """The client of one sandbox, and through it the server."""

    def __init__(self, sandbox: Sandbox, talk: Conversation) -> None:
        self.sandbox = sandbox
        self._talk = talk

    @classmethod
    def start(cls, sandbox: Sandbox) -> Self:
        for name in ("node_server.js", "node_client.js"):
            sandbox.files.write(f"/root/{name}", (INSIDE / name).read_text())
        Conversation.start(sandbox, ["node", "/root/node_server.js"]).expect("listening$")
        talk = Conversation.start(sandbox, ["node", "/root/node_client.js"])
        talk.expect("ready$")
        return cls(sandbox, talk)

    def fork(self, count: int = 1) -> list[Self]:
        made = self.sandbox.fork(count)
        return [type(self)(each, Conversation.inherited(each, self._talk.exec_id)) for each in made]

    def ask(self, command: str) -> Any:
        name = command.split()[0]
        return json.loads(self._talk.ask(command, rf"^{name} (.*)$")[1])

    def work(self) -> None:
        """The busy connections go on, without a wrong answer."""
        before, deadline = self.ask("counts"), time.monotonic() + PATIENCE_S
        while self.ask("counts")["right"] < before["right"] + 30:
            assert time.monotonic() < deadline, "its busy connections stand still"
        assert self.ask("counts")["wrong"] == 0


def test_node_with_established_connections(programs_sandbox: Sandbox) -> None:
    original = Client.start(programs_sandbox)
    first = original.ask("say before")
    # This one, the busy ones and the download.
    assert first["words"] == first["file"] == ["before"] and first["connections"] == 8
    original.work()
    forks = original.fork(2)
    try:
        said = {id(each): ["before"] for each in (original, *forks)}

        def say(client: Client, word: str) -> None:
            """Over the connection that was there, to a server that has heard this client alone."""
            said[id(client)] = said[id(client)] + [word]
            assert client.ask(f"say {word}") == {
                **first,
                "words": said[id(client)],
                "file": said[id(client)],
            }

        say(original, "original")
        for number, fork in enumerate(forks):
            say(fork, f"fork-{number}")
        forks += forks[0].fork()
        said[id(forks[2])] = said[id(forks[0])]
        for number, client in enumerate((forks[2], forks[0], original, forks[1])):
            say(client, f"again-{number}")
        for client in (original, *forks):
            client.work()
            assert client.ask("download") == [True, 0]
            say(client, "last")
    finally:
        for fork in forks:
            fork.sandbox.kill()
    original.work()
