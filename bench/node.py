"""The daemon as the benchmarks see it from outside: is it at rest, and what stands ready."""

from __future__ import annotations

import socket as sockets
import struct
import time

from bench.common import Sample
from sandboxd.client import Daemon

# At rest: three looks in a row, each after a pause longer than that before a launch ahead
# (sandboxd.standing), in which the daemon took less than this.
LOOK_S = 0.025
LOOKS = 3
AT_REST_S = 0.001
REST_DEADLINE_S = 300.0  # huge pages of a large template take seconds per GiB
STANDING_DEADLINE_S = 1.0
TRIES = 8


class Node:
    """One daemon of this machine."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._daemon = Daemon(socket)
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
            connection.connect(socket)
            credentials = connection.getsockopt(
                sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i")
            )
        self.pid: int = struct.unpack("3i", credentials)[0]

    def close(self) -> None:
        self._daemon.close()

    def processor_s(self) -> float:
        """Processor time of the daemon so far."""
        # As clock_getcpuclockid(3) makes it of a pid; 2: of the scheduler, in nanoseconds.
        return time.clock_gettime((~self.pid << 3) | 2)

    def wait_at_rest(self) -> None:
        """Until it neither launches ahead nor removes anything any more."""
        deadline = time.monotonic() + REST_DEADLINE_S
        before, looks = self.processor_s(), 0
        while looks < LOOKS:
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon does not come to rest")
            time.sleep(LOOK_S)
            now = self.processor_s()
            looks = looks + 1 if now - before < AT_REST_S else 0
            before = now

    def standing(self) -> int:
        """Sandboxes that were launched ahead and that nobody has yet, of whatever shape."""
        return self._daemon.info().standing

    def wait_none_standing(self) -> None:
        """Until those that stand are gone because nobody asked for them."""
        deadline = time.monotonic() + REST_DEADLINE_S
        while self.standing() > 0:
            if time.monotonic() > deadline:
                raise RuntimeError("the standing sandboxes do not go")
            time.sleep(10 * LOOK_S)

    def taken(self) -> int:
        """Creates so far that found one."""
        return self._daemon.info().counters["standing_taken"]

    def pool_hit(self, sample: Sample) -> Sample:
        """The sample of a create that finds a standing sandbox. Those that find none are not
        counted: they are what makes the daemon launch some of their shape."""

        def hit() -> float:
            for _ in range(TRIES):
                self._wait_standing()
                before = self.taken()
                taken_ms = sample()
                if self.taken() > before:
                    return taken_ms
            raise RuntimeError(
                f"{TRIES} creates in a row found no standing sandbox; "
                "is the daemon's setting standing_sandboxes 0?"
            )

        return hit

    def _wait_standing(self) -> None:
        deadline = time.monotonic() + STANDING_DEADLINE_S
        while self.standing() == 0 and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        self.wait_at_rest()
