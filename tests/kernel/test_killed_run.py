"""A test run that is killed leaves nothing, also not of a daemon that it had killed before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess

RUN = """
import os, sys
from pathlib import Path
from sandboxd.client import Daemon, Sandbox
from tests.support.daemon import DaemonProcess

daemon = DaemonProcess(sys.argv[1], Path(sys.argv[2]), {"storage_backend": "plain"})
daemon.start()
with Daemon(daemon.socket) as client, open(sys.argv[3], "rb") as tar:
    client.import_image_tar("base", tar)
Sandbox.create(socket=daemon.socket).commands.start("sleep 1000")
if sys.argv[4] == "daemon killed":
    daemon.kill()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("before", ["daemon killed", "daemon runs"])
def test_a_killed_run_leaves_nothing(base_image_tar: Path, tmp_path: Path, before: str) -> None:
    name = f"venus-r{os.getpid()}"
    left = DaemonProcess(name, tmp_path / "state")
    arguments = [name, str(left.state_dir), str(base_image_tar), before]
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        assert left.leftovers()
        run.kill()
    eventually(lambda: not left.state_dir.exists(), "nobody removes what is left", 120)
    assert left.leftovers() == []
    assert not left.run_dir.exists()
