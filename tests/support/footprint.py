"""What a daemon takes of the machine, as far as it can be counted: the same before and after."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import psutil

from sandboxd.client import Daemon
from sandboxd.keeper import PoolKeeper
from tests.support.daemon import DaemonProcess


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


def descriptors_of(pid: int) -> list[str]:
    """What each is of, without the numbers that tell two of a kind apart."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(re.sub(r"\[\d+\]", "", os.readlink(each)))
        except FileNotFoundError:  # closed meanwhile
            continue
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
        "descriptors": descriptors_of(daemon.pid),
        "processes in its groups": [
            each
            for each in Path("/proc").glob("[0-9]*/cgroup")
            if _mentions(each, f"/{daemon.cgroup_parent}/")
        ],
    }


def settled_footprint(daemon: DaemonProcess) -> dict[str, object]:
    """Once what clients closed is closed here, too."""
    seen = footprint(daemon)
    while True:
        with Daemon(daemon.socket) as client:
            client.check_health()
        before, seen = seen, footprint(daemon)
        if seen == before:
            return seen


def _mentions(path: Path, text: str) -> bool:
    try:
        return text in path.read_text() and psutil.Process(int(path.parts[2])).status() != "zombie"
    except (OSError, psutil.Error):
        return False


def layers_of(daemon: DaemonProcess) -> list[str]:
    return sorted(os.listdir(daemon.state_dir / "storage" / "layers"))


def records_of(daemon: DaemonProcess) -> list[str]:
    """Files that say what templates there are."""
    return sorted(os.listdir(daemon.state_dir / "templates"))


def keeper_of(daemon: DaemonProcess) -> PoolKeeper:
    """A connection of our own to the daemon's keeper."""
    keeper = PoolKeeper(daemon.run_dir / "keeper")
    keeper.open()
    return keeper


def template_footprint(daemon: DaemonProcess) -> dict[str, object]:
    """What templates take, by everybody who knows of them."""
    keeper = keeper_of(daemon)
    try:
        state, held = keeper.state(), keeper.list()
    finally:
        keeper.close()
    with Daemon(daemon.socket) as client:
        info = client.info()
    return {
        "layers": layers_of(daemon),
        "records": records_of(daemon),
        "held by the keeper": sorted(each.name for each in held),
        "files of the keeper": state.files,
        "templates": info.templates,
        "pool bytes": info.pool_bytes,
    }


def whole_footprint(daemon: DaemonProcess) -> dict[str, object]:
    """All that can be counted, of the daemon, its sandboxes and its templates."""
    sockets = Path("/proc/net/unix").read_text().splitlines()
    return {
        **footprint(daemon),
        **template_footprint(daemon),
        "loop devices": sorted(
            each.parts[3]
            for each in Path("/sys/block").glob("loop*/loop/backing_file")
            if str(daemon.state_dir) in each.read_text()
        ),
        # Each end of a connection to a socket bears its name, too.
        "sockets": sorted({each.split()[-1] for each in sockets if str(daemon.run_dir) in each}),
        "files": _files_below(daemon.run_dir) + _files_below(daemon.state_dir),
    }


def _files_below(place: Path) -> list[str]:
    """On its own filesystem: what is mounted below holds images and what sandboxes write."""
    found = []
    for directory, names, files in os.walk(place):
        names[:] = [name for name in names if not os.path.ismount(os.path.join(directory, name))]
        found += [os.path.join(directory, name) for name in (*names, *files)]
    return sorted(found)


def meminfo_kib(*names: str) -> int:
    """Sum of these lines of /proc/meminfo."""
    found = dict(re.findall(r"^(\S+):\s+(\d+)", Path("/proc/meminfo").read_text(), re.M))
    return sum(int(found[name]) for name in names)
