"""Writes to redis without a pause and knows what must be there. Runs inside the sandbox.

A fork of the sandbox has all of it: the server, the connections and what is known.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from typing import Any

KEYS = 3000
BATCH = 60


class Redis:
    """One connection; several commands in one go are answered by a list."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", 6379))
        self._replies = self._socket.makefile("rb")

    def __call__(self, *words: str | int) -> Any:
        return self.pipeline([words])[0]

    def pipeline(self, commands: list[tuple[str | int, ...]]) -> list[Any]:
        self._socket.sendall(b"".join(map(self._encode, commands)))
        return [self._reply() for _ in commands]

    @staticmethod
    def _encode(words: tuple[str | int, ...]) -> bytes:
        parts = [str(word).encode() for word in words]
        return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)

    def _reply(self) -> Any:
        line = self._replies.readline()
        if not line:
            raise ConnectionError("redis is gone")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._replies.read(size + 2)[:-2].decode()
        if kind == b":":
            return int(rest)
        return rest if kind == b"+" else f"error: {rest}"


class Load:
    """Strings and hashes of all sizes come, change and go, so that memory becomes fragmented."""

    def __init__(self) -> None:
        self._redis = Redis()
        self._random = random.Random(1)
        self._expected: dict[str, str | dict[str, str]] = {}
        self.lock = threading.Lock()
        self.batches = 0
        self.problems: list[str] = []

    def run(self) -> None:
        while True:
            with self.lock:
                if self.batches % 5 == 0:
                    self._redis = Redis()
                replies = self._redis.pipeline([self._step() for _ in range(BATCH)])
                self.problems += [each for each in replies if str(each).startswith("error")]
                if self.batches % 20 == 0:
                    self._redis("MEMORY", "PURGE")
                if self.batches % 150 == 149:
                    self._redis("BGREWRITEAOF")  # a child of the server; one at a time
                self.batches += 1

    def _step(self) -> tuple[str | int, ...]:
        number = self._random.randrange(KEYS)
        value = f"{self._random.random()}" * self._random.choice((1, 3, 20, 100, 400))
        if self._random.random() < 0.3:
            kind = self._random.choice(("text", "table"))
            self._expected.pop(f"{kind}:{number}", None)
            return ("UNLINK" if number % 2 else "DEL", f"{kind}:{number}")
        if self._random.random() < 0.5:
            self._expected[f"text:{number}"] = value
            return ("SET", f"text:{number}", value)
        field = f"field-{self._random.randrange(8)}"
        table = self._expected.setdefault(f"table:{number}", {})
        assert isinstance(table, dict)
        table[field] = value
        return ("HSET", f"table:{number}", field, value)

    def check(self) -> list[str]:
        """What the server has differently."""
        kinds = {key: isinstance(value, dict) for key, value in self._expected.items()}
        replies = self._redis.pipeline(
            [("HGETALL" if is_table else "GET", key) for key, is_table in kinds.items()]
        )
        found = {
            key: dict(zip(reply[::2], reply[1::2], strict=True)) if kinds[key] else reply
            for key, reply in zip(kinds, replies, strict=True)
        }
        wrong = [key for key, value in self._expected.items() if found[key] != value]
        marks = self._redis("LRANGE", "marks", 0, -1)
        if self._redis("DBSIZE") != len(self._expected) + bool(marks):
            wrong.append("the number of keys")
        return wrong + self.problems


def main() -> None:
    control, load = Redis(), Load()
    threading.Thread(target=load.run, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        command, _, word = line.strip().partition(" ")
        answer: object
        if command == "mark":
            answer = control("RPUSH", "marks", word)
        elif command == "marks":
            answer = control("LRANGE", "marks", 0, -1)
        elif command == "batches":
            answer = load.batches
        elif command == "check":
            with load.lock:
                answer = load.check()
        else:  # reload: everything as the files have it
            with load.lock:
                memory = control("DEBUG", "DIGEST")
                loaded = control("DEBUG", "LOADAOF")
                answer = [loaded, memory == control("DEBUG", "DIGEST"), *load.check()]
        print(command, json.dumps(answer), flush=True)


main()
