"""A sandbox that lays traps for the file API: everything resolves inside it, with its rights."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Sandbox
from sandboxd.errors import VenusError
from tests.support.daemon import DaemonProcess

SECRET = "a secret of the host"


@pytest.fixture
def host_secret(daemon: DaemonProcess) -> Iterator[Path]:
    """A file of the host that every traversal would like to reach."""
    path = Path(f"/tmp/venus-secret-{os.getpid()}")
    path.write_text(SECRET)
    yield path
    path.unlink()


@pytest.mark.parametrize(
    "trap",
    [
        "ln -s {secret} /root/x",
        "ln -s ../../../../../../..{secret} /root/x",
        "ln -s /proc/1/root{secret} /root/x",
        "ln -s /proc/self/root{secret} /root/x",
        "ln -s /proc/self/cwd/../..{secret} /root/x",
        "mkdir -p /root/d && ln -s / /root/d/r && ln -s /root/d/r{secret} /root/x",
    ],
)
def test_links_lead_nowhere_outside(sandbox: Sandbox, host_secret: Path, trap: str) -> None:
    sandbox.commands.run(trap.format(secret=host_secret))
    for path in ("/root/x", str(host_secret), f"/../..{host_secret}"):
        with pytest.raises(VenusError):
            sandbox.files.read(path)
    # Writing follows the link inside the sandbox, or replaces it; the host's file stays.
    with contextlib.suppress(VenusError):
        sandbox.files.write("/root/x", b"overwritten")
    assert host_secret.read_text() == SECRET


def test_descriptors_of_init_cannot_be_borrowed(sandbox: Sandbox) -> None:
    for number in range(20):
        for place in (f"/proc/1/fd/{number}", f"/proc/self/fd/{number}"):
            try:
                content = sandbox.files.read(place, format="bytes")
            except VenusError:
                continue
            assert content == b"", place
    listing = sandbox.commands.run(
        "ls -l /proc/1/fd; ls /proc/1/root/; ls -l /proc/1/exe", check=False
    )
    assert "Permission denied" in listing.stderr


def test_removing_a_tree_does_not_follow_a_link_that_is_swapped_in(
    sandbox: Sandbox, host_secret: Path
) -> None:
    """While the tree is removed, a command swaps a directory for a link to /etc and back."""
    sandbox.commands.run(
        "mkdir -p /root/t && cd /root/t && for i in $(seq 300); do mkdir -p d$i/a; done"
    )
    swap = (
        "import os\nfor i in range(100000):\n"
        "  try:\n    os.rename('/root/t/d7', '/root/t/away'); os.symlink('/etc', '/root/t/d7')\n"
        "    os.unlink('/root/t/d7'); os.rename('/root/t/away', '/root/t/d7')\n"
        "  except OSError: pass\n"
    )
    with sandbox.commands.run(["python3", "-c", swap], True):
        for _ in range(10):
            try:
                sandbox.files.remove("/root/t", recursive=True)
            except VenusError:
                continue
    assert sandbox.files.exists("/etc/passwd")
    assert host_secret.read_text() == SECRET


def test_a_file_swapped_during_an_upload_gains_nothing(sandbox: Sandbox, host_secret: Path) -> None:
    swap = (
        "import os\nfor i in range(100000):\n  try:\n"
        f"    os.rename('/root/u', '/root/v'); os.symlink('/proc/1/root{host_secret}', '/root/u')\n"
        "    os.unlink('/root/u'); os.rename('/root/v', '/root/u')\n  except OSError: pass\n"
    )
    sandbox.commands.run("mkdir -p /root/u")
    with sandbox.commands.run(["python3", "-c", swap], True):
        for index in range(100):
            try:
                sandbox.files.write("/root/u/f", f"{index}".encode())
            except VenusError:
                continue
    assert host_secret.read_text() == SECRET


def test_a_directory_with_very_many_entries_is_bounded(sandbox: Sandbox) -> None:
    script = (
        "import os\nos.mkdir('/dev/shm/many')\n"
        "for i in range(30000): os.close(os.open(f'/dev/shm/many/{i:0200d}', os.O_CREAT))\n"
    )
    sandbox.commands.run(["python3", "-c", script], timeout=120)
    listing = sandbox.files.listing("/dev/shm/many")
    assert listing.truncated and 1000 < len(listing.entries) < 30000


def test_a_deep_tree_is_listed_no_deeper_than_asked(sandbox: Sandbox) -> None:
    script = "import os\nfor i in range(200):\n  os.mkdir('d' * 50); os.chdir('d' * 50)\n"
    sandbox.commands.run(["python3", "-c", script], cwd="/dev/shm")
    assert len(sandbox.files.list("/dev/shm", depth=20)) == 20
    sandbox.files.remove("/dev/shm/" + "d" * 50, recursive=True)
    assert sandbox.files.list("/dev/shm") == []


def test_the_image_is_shared_but_never_written(daemon: DaemonProcess) -> None:
    with (
        Sandbox.create(socket=daemon.socket) as first,
        Sandbox.create(socket=daemon.socket) as second,
    ):
        first.commands.run(
            "echo poisoned > /etc/passwd; rm -rf /usr/share/doc; echo x > /bin/sh", check=False
        )
        assert second.commands.run("head -c 5 /etc/passwd").stdout == "root:"


def test_sandboxes_do_not_see_each_other(daemon: DaemonProcess) -> None:
    with (
        Sandbox.create(socket=daemon.socket) as first,
        Sandbox.create(socket=daemon.socket) as second,
    ):
        first.commands.run(
            "echo mine > /tmp/f; echo mine > /root/f; echo mine > /dev/shm/f; sleep 1000 &"
        )
        seen = second.commands.run(
            "cat /tmp/f /root/f /dev/shm/f; ps -eo comm; cat /proc/net/tcp /proc/net/unix; ipcs",
            check=False,
        ).stdout
        assert "mine" not in seen and "sleep" not in seen
        server = (
            "import socket\ns=socket.create_server(('127.0.0.1', 7777))\n"
            "print('up', flush=True)\ns.accept()"
        )
        with first.commands.run(["python3", "-c", server], True) as handle:
            next(iter(handle))
            client = "import socket\nsocket.create_connection(('127.0.0.1', 7777), 2)"
            assert first.commands.run(["python3", "-c", client], check=False).exit_code == 0
            assert second.commands.run(["python3", "-c", client], check=False).exit_code == 1


def test_many_operations_at_once_on_hostile_paths(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    errors: list[BaseException] = []

    def run(index: int) -> None:
        other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
        try:
            for path in (
                "/proc/self/mem",
                "/proc/kcore",
                "/dev/mem",
                "/proc/1/environ",
                "/sys/kernel",
            ):
                try:
                    other.files.read(path, format="bytes")
                except VenusError:
                    continue
                errors.append(AssertionError(f"{path} was read"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
