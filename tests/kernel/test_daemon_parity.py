"""After many sandboxes the machine is as it was before the first."""

from __future__ import annotations

import gc
import os
import threading

import psutil
import pytest

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess
from tests.support.footprint import footprint, namespaces

COUNT = int(os.environ.get("VENUS_PARITY_COUNT", "500"))
THREADS = 4


@pytest.mark.timeout(600)
def test_many_creates_and_destroys_leave_nothing(daemon: DaemonProcess) -> None:
    def churn(count: int) -> None:
        for index in range(count):
            with Sandbox.create(socket=daemon.socket) as sandbox:
                if index % 10 == 0:
                    sandbox.commands.run("sleep 1000 & echo x > /root/x; echo done")
                if index % 25 == 0:
                    sandbox.files.write("/root/y", b"y" * 100_000)

    def churn_at_once(count: int) -> None:
        threads = [threading.Thread(target=churn, args=(count // THREADS,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    churn_at_once(8 * THREADS)  # what is made once (pools of threads, the null device) is made now
    gc.collect()
    before, namespaces_before = footprint(daemon), namespaces()
    rss_before = psutil.Process(daemon.pid).memory_info().rss
    created = Sandbox.list(socket=daemon.socket)
    assert created == []
    churn_at_once(COUNT)
    after = footprint(daemon)
    assert after == before
    assert psutil.Process(daemon.pid).num_threads() < 40
    risen = namespaces() - namespaces_before
    # Other programs of the machine come and go; a leak would show in every kind, many times.
    assert max(risen.values(), default=0) < max(5, COUNT // 20), risen
    assert psutil.Process(daemon.pid).memory_info().rss - rss_before < 24 << 20
