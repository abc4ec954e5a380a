"""Which file a path of E2B's clients names: an absolute one, or one from the user's home."""

from __future__ import annotations

import posixpath
from collections import OrderedDict

from sandboxd.errors import InvalidRequest, NotFound
from sandboxd.file_ops import FileTarget
from sandboxd.sandbox import LiveSandbox
from sandboxd.templates import commands

MAX_PATH_LENGTH = 4095
_HOME_TIMEOUT_S = 10.0
_MAX_REMEMBERED = 4096


class Paths:
    """Homes are asked for inside the sandbox, once for each of its users."""

    def __init__(self) -> None:
        self._homes: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def target(self, sandbox: LiveSandbox, user: str, path: str) -> FileTarget:
        """The file that is meant. No part of the path is looked up here."""
        if len(path) > MAX_PATH_LENGTH or "\0" in path:
            raise InvalidRequest(
                "the path is refused",
                object=path[:200],
                cause=f"it must be without NUL, and at most {MAX_PATH_LENGTH} characters",
            )
        if path == "~" or path.startswith("~/"):
            path = path[2:]
        elif path.startswith("~"):
            raise InvalidRequest("only one's own home can be named by ~", object=path[:200])
        if not path.startswith("/"):
            path = posixpath.join(await self._home(sandbox, user), path)
        return FileTarget(sandbox=sandbox, path=path.rstrip("/") or "/", user=user)

    async def _home(self, sandbox: LiveSandbox, user: str) -> str:
        key = (sandbox.sandbox_id, user)
        home = self._homes.get(key)
        if home is None:
            home = self._homes[key] = await _ask_home(sandbox, user)
            while len(self._homes) > _MAX_REMEMBERED:
                self._homes.popitem(last=False)
        return home


async def _ask_home(sandbox: LiveSandbox, user: str) -> str:
    script = 'printf %s "$HOME"'
    end = await commands.run(
        sandbox, ("/bin/sh", "-c", script), "find home", _HOME_TIMEOUT_S, user=user
    )
    if not end.ok or not end.log.startswith("/"):
        raise NotFound(
            "the user's home is not known",
            operation="find home",
            object=user or "root",
            cause=end.describe(),
        )
    return end.log
