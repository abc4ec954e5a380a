"""Requests to the daemon as files of prepared bytes, for the driver to send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import Sample
from bench.driver import Until, request_argv, timed
from sandboxd.client import _calls, _command_calls
from sandboxd.client._call import Call
from sandboxd.client._http import encode_request
from sandboxd.client.types import ForkOptions

# driver.c puts the id of the sandbox that it made in its place.
ID_PLACE = "sb-0000000000000000"


class Requests:
    """What is said to one daemon. The files lie in `place`, which is the caller's."""

    def __init__(self, place: Path, socket: str) -> None:
        self._place = place
        self._socket = socket
        self._written: dict[bytes, str] = {}

    def argv(
        self,
        until: Until,
        times: str,
        *,
        create: Call[Any] | None = None,
        command: Sequence[str] | None = None,
        sandbox_id: str = ID_PLACE,
        run: Call[Any] | None = None,
    ) -> list[str]:
        """The driver's command line: a sandbox is made and a command run in it, each unless None,
        or both by one request, `run`; a sandbox that was made is removed."""
        makes = create is not None or run is not None
        if command is not None:
            run = _command_calls.run_command(sandbox_id, list(command))
        remove = _calls.kill_sandbox(ID_PLACE) if makes else None
        files = [self._file(call) for call in (create, run, remove)]
        return request_argv(until, times, self._socket, files)

    def sample(
        self,
        until: Until,
        *,
        create: Call[Any] | None = None,
        command: Sequence[str] | None = None,
        sandbox_id: str = ID_PLACE,
        run: Call[Any] | None = None,
    ) -> Sample:
        """One round of `argv`."""
        return timed(
            self.argv(until, "1", create=create, command=command, sandbox_id=sandbox_id, run=run)
        )

    def _file(self, call: Call[Any] | None) -> str:
        if call is None:
            return "-"
        request = encode_request(call, streamed=False)
        if request not in self._written:
            path = self._place / f"request-{len(self._written)}"
            path.write_bytes(request)
            self._written[request] = str(path)
        return self._written[request]


def new(*, image: str | None = None, template: str | None = None, ahead: bool = True) -> Call[Any]:
    """A create. Not `ahead`: one that never finds a sandbox which was launched ahead, because it
    names its host."""
    options: ForkOptions = {} if ahead else {"hostname": "cold"}
    return _calls.create_sandbox(options, image=image, template=template)


def run_in_new(command: Sequence[str], *, template: str | None = None) -> Call[Any]:
    """A create and a command in one."""
    return _command_calls.start_sandbox(list(command), {}, template=template)
