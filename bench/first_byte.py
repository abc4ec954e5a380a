"""How a new sandbox is timed: from the request for it to the first byte that `echo` writes."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.common import Sample
from bench.raw import RawConnection
from sandboxd.client import Sandbox
from sandboxd.protocol import FrameType

ECHO = ("/bin/echo", "hello")


def through_client(create: Callable[[], Sandbox]) -> Sample:
    """Both requests through the Python client. Ending the sandbox is not timed."""

    def sample() -> float:
        begin = time.perf_counter()
        with create() as sandbox:
            with sandbox.commands.run(ECHO, True) as handle:
                output = iter(handle)
                next(output)
                taken = time.perf_counter() - begin
                for _ in output:
                    pass
        return taken * 1000

    return sample


def through_socket(connection: RawConnection, create: Callable[[], str]) -> Sample:
    """The same over a bare socket. `create` returns the sandbox's id."""

    def sample() -> float:
        begin = time.perf_counter()
        sandbox_id = create()
        taken = None
        for frame_type in connection.run(sandbox_id, list(ECHO)):
            if frame_type is FrameType.STDOUT and taken is None:
                taken = time.perf_counter() - begin
        connection.kill(sandbox_id)
        if taken is None:
            raise RuntimeError("echo wrote nothing")
        return taken * 1000

    return sample
