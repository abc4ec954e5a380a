"""After many sandboxes the machine is as it was before the first."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess

COUNT = int(os.environ.get("VENUS_PARITY_COUNT", "500"))
THREADS = 4


def namespaces() -> Counter[str]:
    """Distinct namespaces by kind, as far as a process stands in them."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*/ns"):
        try:
            found |= {os.readlink(each) for each in directory.iterdir()}
        except OSError:
            continue
    return Counter(each.split(":")[0] for each in found)


def groups_of(daemon: DaemonProcess) -> list[str]:
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            for directory, names, _ in os.walk(Path(place) / daemon.cgroup_parent):
                found += [os.path.join(directory, name) for name in names]
    return sorted(found)


def footprint(daemon: DaemonProcess) -> dict[str, object]:
    process = psutil.Process(daemon.pid)
    places = (str(daemon.run_dir), str(daemon.state_dir))
    return {
        "mounts": sorted(
            line
            for line in Path(f"/proc/{daemon.pid}/mountinfo").read_text().splitlines()
            if any(place in line for place in places)
        ),
        "groups": groups_of(daemon),
        "uppers": sorted(os.listdir(daemon.state_dir / "storage" / "uppers")),
        "run": sorted(os.listdir(daemon.run_dir / "sandboxes")),
        "children": [each.pid for each in process.children(recursive=True)],
        "descriptors": process.num_fds(),
        "processes in its groups": [
            each
            for each in Path("/proc").glob("[0-9]*/cgroup")
            if _mentions(each, f"/{daemon.cgroup_parent}/")
        ],
    }


def _mentions(path: Path, text: str) -> bool:
    try:
        return text in path.read_text() and psutil.Process(int(path.parts[2])).status() != "zombie"
    except (OSError, psutil.Error):
        return False


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
