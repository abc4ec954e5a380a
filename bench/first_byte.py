"""How a new sandbox is timed: from the request for it to the first byte that `echo` writes."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.common import Sample
from sandboxd.client import Sandbox

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
