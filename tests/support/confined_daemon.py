"""sandboxd in a user namespace of its own, whose limits (user.max_*) are nobody else's.

It is root there as everywhere, under the same numbers. What only the machine's own root may do is
left out: the tuning of groups, the list of devices (its hierarchy is unmounted, for this daemon
alone), and what an overlay keeps in attributes that only that root may write.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sandboxd import __main__ as sandboxd
from sandboxd import launch
from tests.support.daemon import DaemonProcess, serving

_HOLDER = """
umount /sys/fs/cgroup/devices
exec unshare --user --mount --propagation private sh -c 'echo; exec cat'
"""
_ALL_IDS = "0 0 4294967295"


class Namespace:
    """A user namespace, and a mount namespace of its; `pid` stands in both."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.enter = ("nsenter", f"--target={pid}", "--user", "--mount")

    def run(self, *command: str) -> None:
        subprocess.run([*self.enter, *command], check=True)

    @contextlib.contextmanager
    def limited(self, kind: str, count: int) -> Iterator[None]:
        """So many namespaces of that kind for each user."""
        file = f"/proc/sys/user/max_{kind}_namespaces"
        read = [*self.enter, "cat", file]
        before = subprocess.run(read, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.run("sh", "-c", f"echo {count} > {file}")
        try:
            yield
        finally:
            self.run("sh", "-c", f"echo {before} > {file}")


class ConfinedDaemon(DaemonProcess):
    """On a filesystem that belongs to the namespace, as layers of sandboxes have to."""

    module = "tests.support.confined_daemon"
    is_reaped = False  # all of it ends with its namespace

    def __init__(self, name: str, place: Path, namespace: Namespace) -> None:
        namespace.run("mount", "-t", "tmpfs", "-o", "size=600m,mode=755", "confined", str(place))
        # The same from within and from without.
        seen = Path(f"/proc/{namespace.pid}/root") / place.relative_to("/")
        super().__init__(name, seen / "state", {"storage_backend": "plain"})
        # To enter a namespace clears what was asked for the parent's death.
        self.prefix = (*namespace.enter, "setpriv", "--pdeathsig", "TERM")


@contextlib.contextmanager
def own_namespace() -> Iterator[Namespace]:
    """Ends with all that is mounted in it when its last process has ended."""
    command = ["unshare", "--mount", "sh", "-ec", _HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.read(1) == b"\n", "it was not made"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{name}").write_text(_ALL_IDS)
        yield Namespace(holder.pid)


@contextlib.contextmanager
def confined(place: Path, image_tar: Path) -> Iterator[tuple[ConfinedDaemon, Namespace]]:
    """One that runs, with the image `base`; `place` is an empty directory."""
    with own_namespace() as namespace:
        daemon = ConfinedDaemon(f"venus-u{os.getpid()}", place, namespace)
        with serving(daemon, image_tar):
            yield daemon, namespace


if __name__ == "__main__":
    launch.OVERLAY_OPTIONS = (("volatile", ""),)
    sys.exit(sandboxd.main())
