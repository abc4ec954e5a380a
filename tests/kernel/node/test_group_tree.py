"""The version 2 groups of a sandbox, on the hierarchy of this machine, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sandboxd.cgroups import mounted_hierarchies
from sandboxd.cgroups.tree import GroupTree
from tests.kernel.test_daemon_recovery import eventually

IDS = ("first", "second")


@pytest.fixture
def parent() -> Iterator[Path]:
    hierarchy = mounted_hierarchies().unified
    assert hierarchy is not None, "no version 2 hierarchy is mounted"
    parent = hierarchy / f"venus-tree-{os.getpid()}"
    parent.mkdir()
    yield parent
    parent.rmdir()


@pytest.fixture
def tree(parent: Path) -> Iterator[GroupTree]:
    tree = GroupTree(str(parent))
    yield tree
    for sandbox_id in IDS:
        tree.kill(sandbox_id)
        tree.remove(sandbox_id)


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.wait()


def join(
    fds: list[int],
    running: list[subprocess.Popen[bytes]],
    command: Sequence[str] = ("sleep", "infinity"),
) -> subprocess.Popen[bytes]:
    """A process in the groups of these descriptors."""
    process = subprocess.Popen(command)
    running.append(process)
    for descriptor in fds:
        os.write(descriptor, str(process.pid).encode())
    return process


def wait_for_progress(tree: GroupTree, sandbox_id: str) -> None:
    before_s = tree.cpu_s(sandbox_id)
    eventually(lambda: tree.cpu_s(sandbox_id) > before_s, "it does not run")


def test_a_command_is_killed_alone_and_a_sandbox_whole(
    tree: GroupTree, running: list[subprocess.Popen[bytes]], parent: Path
) -> None:
    tree.create("first")
    init_fd = tree.open_init_procs("first")
    init = join([init_fd], running)
    os.close(init_fd)
    group = tree.open_exec("first", 7)
    command = join(group.procs_fds, running)
    assert tree.exec_ids("first") == [7]
    assert tree.pids("first") == {init.pid, command.pid}
    assert not tree.remove_exec("first", 7)

    assert group.kill_fd is not None
    os.write(group.kill_fd, b"1")
    group.close()
    assert command.wait() == -signal.SIGKILL
    assert tree.remove_exec("first", 7)
    assert tree.remove_exec("first", 7)
    assert tree.pids("first") == {init.pid}
    assert tree.cpu_s("first") > 0

    tree.kill("first")
    tree.remove("first")
    assert init.wait() == -signal.SIGKILL
    assert not any(each.is_dir() for each in parent.iterdir())
    tree.kill("first")
    tree.remove("first")


def test_a_frozen_sandbox_stands_still_and_can_be_killed(
    tree: GroupTree, running: list[subprocess.Popen[bytes]], parent: Path
) -> None:
    for sandbox_id in IDS:
        tree.create(sandbox_id)
        group = tree.open_exec(sandbox_id, 1)
        join(group.procs_fds, running, ["sh", "-c", "while :; do :; done"])
        group.close()
    tree.set_frozen("first", True)
    assert "frozen 1" in (parent / "first" / "cgroup.events").read_text()
    assert "frozen 0" in (parent / "second" / "cgroup.events").read_text()
    stood_s = tree.cpu_s("first")
    wait_for_progress(tree, "second")
    assert tree.cpu_s("first") == stood_s
    tree.set_frozen("first", False)
    wait_for_progress(tree, "first")

    tree.set_frozen("first", True)
    tree.kill("first")
    tree.remove("first")
    assert running[0].wait() == -signal.SIGKILL
