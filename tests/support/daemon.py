"""A real sandboxd process with directories, cgroups and ids of its own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from sandboxd.client import Daemon
from sandboxd.errors import VenusError
from tests.support.keeper import end_keeper

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
PR_SET_PDEATHSIG = 1


def _end_with_the_parent() -> None:
    """A test run that is killed must not leave its daemons running."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class DaemonProcess:
    """Starts and stops one daemon. `name` must be unique on the machine and short.

    The run directory is not under pytest's temporary directory: paths of Unix sockets are
    limited to 107 bytes.
    """

    module = "sandboxd"
    prefix: tuple[str, ...] = ()
    """What starts it, before the interpreter."""
    is_reaped = True
    """Whether another process removes what is left when this one is killed."""

    def __init__(self, name: str, state_dir: Path, settings: dict[str, str] | None = None) -> None:
        self.name = name
        self.state_dir = state_dir
        self.run_dir = Path("/run") / name
        self.log_path = state_dir / "daemon.log"
        self.cgroup_parent = name
        # Nothing is launched ahead, so that what there is on the machine is what a test asked for.
        self._settings = {
            "storage_size_bytes": str(8 << 30),
            "standing_sandboxes": "0",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self.run_dir / "sandboxd.sock")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon is not running"
        return self._process.pid

    def start(self) -> None:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        # What the caller's own environment says about another daemon must not reach this one.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("VENUS_")}
        own = {
            "state_dir": str(self.state_dir),
            "run_dir": str(self.run_dir),
            "cgroup_parent": self.cgroup_parent,
            **self._settings,
        }
        with self.log_path.open("ab") as log:
            if self.is_reaped and self._reaper is None:
                self._reaper = self._start_reaper(log)
            self._process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", self.module],
                env={**inherited, **{f"VENUS_{k.upper()}": v for k, v in own.items()}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_the_parent,
            )
        self._wait_until_healthy()

    def _start_reaper(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """A shell that waits for the word that all is done, or for the end of this process."""
        work = [sys.executable, "-m", "tests.support.reaper", self.name, str(self.state_dir)]
        return subprocess.Popen(
            ["sh", "-c", 'read -r word || exec "$@"', "reaper", *work, json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Whether it dies by itself, within the time that it may take."""
        assert self._process is not None, "the daemon was not started"
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with Daemon(self.socket) as daemon:
            while True:
                try:
                    daemon.check_health()
                    return
                except VenusError as error:
                    if self._process is None or self._process.poll() is not None:
                        raise AssertionError(f"sandboxd ended at start:\n{self.log()}") from error
                    if time.monotonic() > deadline:
                        self.kill()
                        raise AssertionError(f"sandboxd is not healthy:\n{self.log()}") from error
                time.sleep(0.02)

    def stop(self) -> None:
        """SIGTERM, which must clean up, and end with exit code 0."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"sandboxd does not end on SIGTERM:\n{self.log()}") from None
        assert code == 0, f"sandboxd ended with {code}:\n{self.log()}"

    def kill(self) -> None:
        """kill -9: nothing gets a chance to clean up."""
        assert self._process is not None, "the daemon is not running"
        process, self._process = self._process, None
        process.kill()
        process.wait()

    def remove(self) -> None:
        """Stops the daemon and deletes its directories; what it leaves behind is an error.

        Also after a failure the machine must be as before, so what is left is forced away; a
        mount first, because deleting must never reach into one.
        """
        leftovers = []
        try:
            self.stop()
            leftovers = self.leftovers()
        finally:
            end_keeper(self.run_dir / "keeper")
            for name in ("storage", "library"):
                subprocess.run(["umount", "--lazy", "--quiet", self.state_dir / name], check=False)
            shutil.rmtree(self.state_dir, ignore_errors=True)
            shutil.rmtree(self.run_dir, ignore_errors=True)
            if self._reaper is not None:
                self._reaper.communicate(b"done\n")
                self._reaper = None
        assert not leftovers, "the stopped daemon has left behind:\n" + "\n".join(leftovers)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-8000:]

    def leftovers(self) -> list[str]:
        """Mounts, cgroups, processes and loop devices that a stopped daemon has left behind."""
        found = []
        places = (str(self.run_dir), str(self.state_dir))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if any(place in line for place in places):
                found.append(f"mount: {line}")
        # The group itself may be anywhere under the hierarchies that are mounted.
        for mount in Path("/proc/self/mounts").read_text().splitlines():
            _, where, kind, *_ = mount.split()
            group = Path(where) / self.cgroup_parent
            if kind in ("cgroup", "cgroup2") and group.exists():
                found.append(f"cgroup: {group}")
        for process in psutil.process_iter(["pid", "cmdline"]):
            command = " ".join(process.info["cmdline"] or ())
            if str(self.run_dir) in command:
                found.append(f"process: {process.info['pid']} {command}")
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            if str(self.state_dir) in backing.read_text():
                found.append(f"loop device: {backing}")
        sandboxes = self.run_dir / "sandboxes"
        if sandboxes.is_dir():
            found += [f"run directory: {each}" for each in sandboxes.iterdir()]
        return found


@contextlib.contextmanager
def serving(daemon: DaemonProcess, image_tar: Path) -> Iterator[None]:
    """It runs meanwhile, with the image `base`, and leaves nothing behind."""
    try:
        daemon.start()
        with Daemon(daemon.socket) as client, image_tar.open("rb") as tar:
            client.import_image_tar("base", tar)
        yield
    finally:
        daemon.remove()
