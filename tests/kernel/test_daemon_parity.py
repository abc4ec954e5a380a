"""After many sandboxes the machine is as it was before the first.

VENUS_PARITY_CYCLES (2000) says how many; 10000 are for an hour in which nobody waits.
"""

from __future__ import annotations

import contextlib
import gc
import os
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from sandboxd.client import Sandbox, Template
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess
from tests.support.footprint import namespaces, whole_footprint

CYCLES = int(os.environ.get("VENUS_PARITY_CYCLES", "2000"))
AT_ONCE = 4
# Of each so many cycles, one does what takes longer.
STEP_BY_STEP, WITH_FILE, WITH_FORK = 10, 30, 50
MAX_THREADS = 40
MAX_GROWTH_BYTES = 24 << 20


def cycle(daemon: DaemonProcess, template: Template, index: int) -> None:
    """A sandbox and a fork come, run a command, and go."""
    for origin, command in ((None, "echo kept"), (template, "cat /root/kept")):
        made, handle = Sandbox.start(command, template=origin, remove=True, socket=daemon.socket)
        with handle:
            assert handle.wait().stdout == "kept\n"
        made.close()
    if index % STEP_BY_STEP:
        return
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.commands.run("sleep 1000 & echo x > /root/x")
        if index % WITH_FILE == 0:
            sandbox.files.write("/root/y", b"y" * 100_000)
        if index % WITH_FORK == 0:
            with sandbox.fork(1)[0] as fork:
                fork.kill()


@pytest.mark.timeout(7200)
def test_many_cycles_leave_nothing(daemon: DaemonProcess) -> None:
    def cycles(count: int) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(cycle, daemon, template, each) for each in range(count)]:
                done.result()

    with Sandbox.create(socket=daemon.socket) as original:
        original.commands.run("echo kept > /root/kept; sleep 1000 &")
        template = original.snapshot()
    template.close()  # it asks again when it is removed
    try:
        cycles(8 * AT_ONCE)  # what is made once (threads, room) is made now
        gc.collect()
        process = psutil.Process(daemon.pid)
        assert Sandbox.list(socket=daemon.socket) == []
        before, namespaces_before = whole_footprint(daemon), namespaces()
        resident_before = process.memory_info().rss
        cycles(CYCLES)
        gc.collect()
        with contextlib.suppress(AssertionError):
            eventually(lambda: whole_footprint(daemon) == before, "they leave something")
        assert whole_footprint(daemon) == before
        assert process.num_threads() < MAX_THREADS
        risen = namespaces() - namespaces_before
        # Other programs of the machine come and go; a leak would show in every kind, many times.
        assert max(risen.values(), default=0) < max(5, CYCLES // 20), risen
        assert process.memory_info().rss - resident_before < MAX_GROWTH_BYTES
    finally:
        template.remove()
