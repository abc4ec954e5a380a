"""A daemon that serves E2B's clients, and their SDK as its users set it up: by the environment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2b import Sandbox

from tests.support.daemon import DaemonProcess, serving

KEY = "e2b_" + "1" * 40
OTHER_KEY = "e2b_" + "2" * 40
ROOT_KEY = "e2b_" + "3" * 40
TENANT_UID = 41001
OTHER_UID = 41002
# A user `user`. Unlike useradd it does not wait for the disk, on which others write.
ADD_USER = """
echo user:x:1000:1000::/home/user:/bin/bash >> /etc/passwd
echo user:x:1000: >> /etc/group
mkdir -m 700 /home/user
chown user:user /home/user
"""
# Of each sandbox.
DISK_BYTES = 128 << 20


@dataclass(frozen=True)
class E2bDaemon:
    """The daemon, and where the SDK finds it."""

    process: DaemonProcess
    keys_file: Path

    @property
    def url(self) -> str:
        """Of the daemon that runs now."""
        text = self.process.log_path.read_text()
        *_, (host, port) = re.findall(r"address (\S+) port (\d+)", text)
        return f"http://{host}:{port}"

    def reload_keys(self, content: str) -> None:
        """Returns when the daemon has read the new content of the file."""
        self.keys_file.write_text(content)
        seen = self._reports()
        os.kill(self.process.pid, signal.SIGHUP)
        deadline = time.monotonic() + 60
        while self._reports() == seen:
            assert time.monotonic() < deadline, "the keys are not read"
            time.sleep(0.01)

    def _reports(self) -> int:
        return self.process.log_path.read_text().count("E2B clients:")


@contextlib.contextmanager
def serving_e2b(name: str, state: Path, image_tar: Path) -> Iterator[E2bDaemon]:
    """A daemon with the image `base`, and with keys of three tenants."""
    keys_file = state / "keys"
    keys_file.touch(mode=0o600)
    keys_file.write_text(f"{KEY} {TENANT_UID}\n{OTHER_KEY} {OTHER_UID}\n{ROOT_KEY} 0 # root\n")
    settings = {
        "e2b_address": "127.0.0.1:0",
        "e2b_keys_file": str(keys_file),
        "default_disk_bytes": str(DISK_BYTES),
    }
    process = DaemonProcess(name, state / "state", settings)
    with serving(process, image_tar):
        yield E2bDaemon(process, keys_file)


@pytest.fixture(scope="session")
def e2b_daemon(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[E2bDaemon]:
    state = tmp_path_factory.mktemp("venus-e2b")
    with serving_e2b(f"venus-2{os.getpid()}", state, base_image_tar) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def environment(e2b_daemon: E2bDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody sets who brings code for E2B."""
    monkeypatch.setenv("E2B_API_URL", e2b_daemon.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", e2b_daemon.url)
    monkeypatch.setenv("E2B_API_KEY", KEY)


@pytest.fixture
def sandbox(environment: None) -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        yield sandbox
