"""What a sandbox sees: its own files, processes, network and memory, and nothing of others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sandboxd.init_protocol import ExecFds
from sandboxd.launch import Launcher
from tests.kernel.node.harness import IMAGE, Box, running_box

KEY = 0x5EED


@pytest.fixture(scope="module")
def other(launcher: Launcher, probe_binary: Path) -> Iterator[Box]:
    with running_box(launcher) as other:
        other.install_probe(probe_binary)
        yield other


@pytest.fixture(scope="module")
def foreign(launcher: Launcher) -> Iterator[Box]:
    """A sandbox of another tenant."""
    with running_box(launcher, tenant_uid=4242) as foreign:
        yield foreign


def test_writes_stay_in_the_sandbox(box: Box, other: Box, launcher: Launcher) -> None:
    image_root = launcher.images.acquire(IMAGE)
    launcher.images.release(IMAGE)
    before = (image_root / "etc/passwd").read_bytes()
    box.output("echo mine > /root/secret; echo changed >> /etc/passwd; rm /etc/issue")
    assert other.shell("cat /root/secret").code != 0
    assert "changed" not in other.output("cat /etc/passwd")
    assert other.output("cat /etc/issue")
    assert (image_root / "etc/passwd").read_bytes() == before


def test_a_directory_of_the_image_can_be_renamed(box: Box) -> None:
    # Without redirects an overlay answers EXDEV, which programs do not expect on one filesystem.
    assert box.output("mv /usr/share/doc /usr/share/doc2 && ls -d /usr/share/doc2")


def test_processes_of_others_are_not_there(box: Box, other: Box) -> None:
    box.start("sleep", "1000")
    seen = box.output("ps -eo pid,args")
    assert "sleep 1000" in seen
    assert seen.splitlines()[1].split()[:1] == ["1"]
    assert "sleep 1000" not in other.output("ps -eo pid,args")
    assert other.shell(f"kill -0 {os.getpid()}").code != 0
    assert other.output("ls /proc | grep -c '^[0-9]'") in ("3", "4", "5")


def test_every_namespace_is_the_sandboxes_own(box: Box, other: Box) -> None:
    kinds = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
    mine, theirs = (
        [each.output(f"readlink /proc/self/ns/{kind}") for kind in kinds] for each in (box, other)
    )
    hosts = [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
    for kind, first, second, host in zip(kinds, mine, theirs, hosts, strict=True):
        assert len({first, second, host}) == 3, kind


SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 7777))
print("ready", flush=True)
server.accept()
"""
CLIENT = """
import socket
try:
    socket.create_connection(("127.0.0.1", 7777), timeout=5)
    print("connected")
except OSError as error:
    print(error.errno)
"""


def test_loopback_is_up_and_private(box: Box, other: Box) -> None:
    out_read, out_write = os.pipe()
    box.start("python3", "-c", SERVER, fds=ExecFds(stdout=out_write))
    os.close(out_write)
    assert os.read(out_read, 6) == b"ready\n"
    os.close(out_read)
    assert other.run("python3", "-c", CLIENT).stdout == b"111\n"  # ECONNREFUSED
    assert box.run("python3", "-c", CLIENT).stdout == b"connected\n"
    assert box.run("python3", "-c", CLIENT.replace("127.0.0.1", "1.1.1.1")).stdout == b"101\n"
    assert other.output("ls /sys/class/net") == "lo"


def test_a_name_resolves_to_the_sandbox_itself(box: Box) -> None:
    assert box.output("hostname") == box.sandbox_id
    assert box.output("cat /etc/hostname") == box.sandbox_id
    done = box.run("python3", "-c", "import socket; print(socket.gethostbyname('localhost'))")
    assert done.stdout == b"127.0.0.1\n"


def test_shared_memory_is_not_shared_with_others(box: Box, other: Box) -> None:
    assert box.probe("shared", KEY, "secret") == "secret"
    assert box.probe("shared", KEY) == "secret"
    assert other.probe("shared", KEY) == "2"  # ENOENT
    box.output("echo secret > /dev/shm/name; echo secret > /tmp/name; echo secret > /run/name")
    for directory in ("/dev/shm", "/tmp", "/run"):
        assert other.shell(f"test -e {directory}/name").code == 1


def test_nothing_of_the_host_is_mounted(box: Box, launcher: Launcher) -> None:
    mounts = box.output("cat /proc/self/mountinfo")
    for path in (launcher._config.state_dir, launcher._config.run_dir, "/sys/fs/cgroup"):
        assert str(path) not in mounts
    assert box.output("ls -di / /proc/1/root/ | cut -d' ' -f1 | uniq | wc -l") == "1"
    names = {line.split()[4] for line in mounts.splitlines()}
    assert names >= {"/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/tmp"}


def test_groups_do_not_tell_the_hosts_names(box: Box, launcher: Launcher) -> None:
    groups = box.output("cat /proc/self/cgroup /proc/1/cgroup")
    assert launcher._config.cgroup_parent not in groups
    assert box.sandbox_id not in groups


def test_devices_are_the_minimal_set(box: Box) -> None:
    expected = "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert box.output("ls /dev").split() == expected.split()
    assert box.output("head -c 4 /dev/zero | od -An -tx1") == "00 00 00 00"
    assert box.shell("echo x > /dev/full").code != 0
    assert box.output("echo x > /dev/null; head -c 8 /dev/urandom | wc -c") == "8"


def test_streams_can_be_opened_again_by_name(box: Box) -> None:
    for user in ("", "1000"):
        done = box.run(
            "/bin/sh", "-c", "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr",
            stdin=b"in", user=user,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (b"in", b"err\n")


def test_pseudo_terminals_work_and_are_private(box: Box, other: Box) -> None:
    script = "import os, time; print(os.ttyname(os.openpty()[1]), flush=True); time.sleep(100)"
    out_read, out_write = os.pipe()
    box.start("python3", "-c", script, fds=ExecFds(stdout=out_write))
    os.close(out_write)
    assert os.read(out_read, 100) == b"/dev/pts/0\n"
    os.close(out_read)
    assert "0" in box.output("ls /dev/pts").split()
    assert other.output("ls /dev/pts") == "ptmx"


def test_only_the_three_streams_are_inherited(box: Box) -> None:
    assert box.output("ls /proc/self/fd").split() == ["0", "1", "2", "3"]  # 3 is ls reading it


def test_ids_on_disk_are_plain_and_ids_in_the_kernel_are_the_tenants(
    box: Box, foreign: Box
) -> None:
    box.output(
        "mkdir /srv/out; touch /srv/out/root; touch /srv/out/user; chown 1000:50 /srv/out/user"
    )
    upper = box.host_upper() / "srv/out"
    assert (upper / "root").stat().st_uid == 0
    status = (upper / "user").stat()
    assert (status.st_uid, status.st_gid) == (1000, 50)
    bases = [psutil.Process(each.launched.init_pid).uids().real for each in (box, foreign)]
    assert all(base >= 1 << 30 for base in bases)
    assert abs(bases[0] - bases[1]) >= 65536


def test_the_clock_of_a_sandbox_begins_with_its_init(other: Box) -> None:
    started = other.output("stat -c %Y /proc/1")
    assert abs(time.time() - int(started)) < 600
