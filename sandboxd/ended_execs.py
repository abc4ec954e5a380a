"""Kept commands that have ended: how, and with the end of their output, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxd.running_exec import RunningExec


class EndedExecs:
    """Those of one sandbox: at most `most`, the last ones, each for `kept_s` seconds."""

    def __init__(self, most: int, kept_s: float) -> None:
        self._most = most
        self._kept_s = kept_s
        self._ended: dict[int, tuple[RunningExec, asyncio.TimerHandle]] = {}

    def __iter__(self) -> Iterator[RunningExec]:
        return iter([running for running, _ in self._ended.values()])

    def get(self, exec_id: int) -> RunningExec | None:
        """The one with this id, if it is still known."""
        found = self._ended.get(exec_id)
        return None if found is None else found[0]

    def add(self, running: RunningExec) -> None:
        """The oldest goes for it when there are too many."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._kept_s, self._forget, running.exec_id)
        self._ended[running.exec_id] = (running, timer)
        if len(self._ended) > self._most:
            self._forget(next(iter(self._ended)))

    def clear(self) -> None:
        """The sandbox goes, and with it all that was known of its commands."""
        for exec_id in list(self._ended):
            self._forget(exec_id)

    def _forget(self, exec_id: int) -> None:
        running, timer = self._ended.pop(exec_id)
        timer.cancel()
        running.forget_output()
