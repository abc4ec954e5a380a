"""sandboxd that dies by SIGKILL at a chosen step of what it does.

The steps are those that the code has: every step of the row that a sandbox is made of, and every
call of the objects that leave something outside of the daemon's memory. `VENUS_CRASH_DIR/passed`
lists those that were passed; at the one that `VENUS_CRASH_DIR/at` names the daemon dies.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandboxd import __main__ as sandboxd
from sandboxd import _native
from sandboxd.init_link import InitLink
from sandboxd.init_protocol.numbers import HEADER, MessageType
from sandboxd.keeper.connection import Connection
from sandboxd.launch import Launcher
from sandboxd.launched import LaunchedSandbox
from sandboxd.registry import Registry
from sandboxd.storage.layers import LayerStore
from sandboxd.templates.pages import KeptPages
from sandboxd.templates.records import TemplateRecords

DIRECTORY = Path(os.environ["VENUS_CRASH_DIR"])
OBJECTS: dict[type, tuple[str, ...]] = {
    LayerStore: ("flush", "freeze", "merge", "hold", "release"),
    KeptPages: ("hold", "release"),
    TemplateRecords: ("write", "forget"),
    Registry: ("write", "forget"),
    LaunchedSandbox: ("open_exec_cgroup", "remove_exec_cgroup", "begin_kill"),
}


def _pass(step: str) -> None:
    with (DIRECTORY / "passed").open("a") as passed:
        passed.write(f"{step}\n")
    at = DIRECTORY / "at"
    if at.exists() and at.read_text() == step:
        os.kill(os.getpid(), signal.SIGKILL)


def _watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def watched(*arguments: Any, **options: Any) -> Any:
        _pass(f"before {name}")
        result = call(*arguments, **options)
        _pass(f"after {name}")
        return result

    return watched


def _watch_everything() -> None:
    for owner, names in OBJECTS.items():
        for name in names:
            wrapped = _watched(f"{owner.__name__}.{name}", getattr(owner, name))
            setattr(owner, name, wrapped)
    _native.Tracer.capture = _watched("capture", _native.Tracer.capture)  # type: ignore[method-assign]
    _native.Template.send = _watched("send", _native.Template.send)  # type: ignore[method-assign]
    ask, init, send = Connection.ask, Launcher.__init__, InitLink._try_send

    def watched_send(self: InitLink, packet: bytes, *arguments: Any) -> bool:
        kind = MessageType(HEADER.unpack_from(packet)[1]).name
        return bool(_watched(f"init {kind}", send)(self, packet, *arguments))

    def watched_ask(self: Connection, kind: Any, *arguments: Any, **options: Any) -> Any:
        return _watched(f"keeper {kind.name}", ask)(self, kind, *arguments, **options)

    def watched_init(self: Launcher, *arguments: Any) -> None:
        init(self, *arguments)
        self._steps = tuple(
            dataclasses.replace(
                step,
                do=_watched(f"make {step.name}", step.do),
                undo=_watched(f"remove {step.name}", step.undo),
            )
            for step in self._steps
        )

    Connection.ask = watched_ask  # type: ignore[method-assign]
    InitLink._try_send = watched_send  # type: ignore[method-assign]
    Launcher.__init__ = watched_init  # type: ignore[method-assign]


if __name__ == "__main__":
    _watch_everything()
    sys.exit(sandboxd.main())
