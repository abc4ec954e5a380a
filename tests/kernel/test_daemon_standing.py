"""Sandboxes that were launched ahead: found by creates, nobody else's, and gone when not wanted."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from tests.support.daemon import DaemonProcess, serving

WINDOW_S = 2.0
STANDING = 3


@pytest.fixture(scope="module")
def ahead(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon that launches ahead."""
    process = DaemonProcess(
        f"venus-a{os.getpid()}",
        tmp_path_factory.mktemp("ahead"),
        {"standing_sandboxes": str(STANDING), "standing_window_s": str(WINDOW_S)},
    )
    with serving(process, base_image_tar):
        yield process


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it does not come to hold"
        time.sleep(0.02)


def directories(daemon: DaemonProcess) -> set[str]:
    return set(os.listdir(daemon.run_dir / "sandboxes"))


def taken(daemon: DaemonProcess) -> int:
    with Daemon(daemon.socket) as client:
        return client.info().counters["standing_taken"]


def ask(daemon: DaemonProcess, times: int = 2) -> None:
    """Creates and removes some, so that more are expected."""
    for _ in range(times):
        Sandbox.create(socket=daemon.socket).kill()


def test_a_create_finds_one_and_it_is_like_any_other(ahead: DaemonProcess) -> None:
    ask(ahead)
    until(lambda: len(directories(ahead)) >= 2)
    standing = directories(ahead)
    before = taken(ahead)
    with Sandbox.create(socket=ahead.socket, envs={"GREETING": "hello"}) as sandbox:
        assert sandbox.sandbox_id in standing
        assert taken(ahead) == before + 1
        script = "hostname; echo $GREETING; wc -c < /run/venus/generation; ls -A /tmp"
        lines = sandbox.commands.run(script).stdout.splitlines()
        assert lines == [sandbox.sandbox_id, "hello", lines[2]]
        assert int(lines[2]) >= 36


def test_those_that_stand_are_not_listed_and_belong_to_no_population(ahead: DaemonProcess) -> None:
    ask(ahead)
    with Daemon(ahead.socket) as client:
        until(lambda: client.info().standing >= 2)
        assert client.info().sandboxes == 0
    assert Sandbox.list(socket=ahead.socket) == []


def test_another_shape_does_not_find_them(ahead: DaemonProcess) -> None:
    ask(ahead)
    until(lambda: len(directories(ahead)) >= 2)
    before = taken(ahead)
    Sandbox.create(socket=ahead.socket, memory_bytes=64 << 20).kill()
    Sandbox.create(socket=ahead.socket, hostname="named").kill()
    assert taken(ahead) == before


# Tells on each line of its input how much of its timer is left, and how many lines it has had.
CLOCKED = """
import signal, sys
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    print(number, signal.getitimer(signal.ITIMER_REAL)[0], flush=True)
"""


@contextmanager
def clocked_template(daemon: DaemonProcess, timer_s: int) -> Iterator[tuple[Template, int]]:
    """A template of CLOCKED, and the number of its command. Without a timer nothing is left to be
    done once one stands."""
    program = ["python3", "-c", CLOCKED, str(timer_s)]
    with Sandbox.create(socket=daemon.socket) as sandbox:
        with sandbox.commands.run(program, True, stdin=True) as handle:
            assert next(iter(handle)).data == b"ready\n"
            made = sandbox.snapshot()
    try:
        yield made, handle.exec_id
    finally:
        made.close()


def ask_for_forks(daemon: DaemonProcess, template: Template) -> None:
    """Until one stands ready, and nothing else does but another that is being prepared."""
    until(lambda: not directories(daemon))
    for _ in range(2):
        Sandbox.create(template=template, socket=daemon.socket).kill()
    until(lambda: len(directories(daemon)) >= 2)


def told(sandbox: Sandbox, exec_id: int) -> list[str]:
    """What CLOCKED says of its timer."""
    sandbox.commands.send_stdin(exec_id, b"\n")
    until(lambda: sandbox.commands.output(exec_id).endswith(b"\n"))
    return sandbox.commands.output(exec_id).decode().split()


def test_a_fork_finds_one_in_which_no_clock_ran_meanwhile(ahead: DaemonProcess) -> None:
    begin = time.monotonic()
    with clocked_template(ahead, 1000) as (template, exec_id):
        until_snapshot_s = time.monotonic() - begin
        ask_for_forks(ahead, template)
        standing = directories(ahead)
        time.sleep(1.0)  # nobody waits for anything: it is the time that must not count
        before = taken(ahead)
        begin = time.monotonic()
        with Sandbox.create(template=template, socket=ahead.socket) as fork:
            assert fork.sandbox_id in standing
            assert taken(ahead) == before + 1
            number, left_s = told(fork, exec_id)
            since_fork_s = time.monotonic() - begin
            assert number == "0"
            assert 1000 - float(left_s) < until_snapshot_s + since_fork_s
            assert fork.commands.run("cat /run/venus/generation").stdout.strip()


def test_a_template_goes_with_those_that_stand_on_it(ahead: DaemonProcess) -> None:
    with clocked_template(ahead, 0) as (template, _):
        ask_for_forks(ahead, template)
        standing = directories(ahead)
        template.remove()
        assert not standing & directories(ahead)


@pytest.mark.parametrize("timer_s", [0, 1000])
def test_one_whose_processes_died_is_not_given_away(ahead: DaemonProcess, timer_s: int) -> None:
    with clocked_template(ahead, timer_s) as (template, exec_id):
        ask_for_forks(ahead, template)
        standing = directories(ahead)
        killed = 0
        for directory in Path("/sys/fs/cgroup/pids", ahead.cgroup_parent).iterdir():
            if directory.name in standing:
                # The first of them is init.
                for pid in sorted(map(int, (directory / "cgroup.procs").read_text().split()))[1:]:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        assert killed
        # By the time that this one is made, their init has told the daemon.
        Sandbox.create(socket=ahead.socket, hostname="another").kill()
        with Sandbox.create(template=template, socket=ahead.socket) as fork:
            assert told(fork, exec_id)[0] == "0"


def test_one_whose_init_died_is_not_given_away(ahead: DaemonProcess) -> None:
    ask(ahead, STANDING)
    until(lambda: len(directories(ahead)) == STANDING)
    for directory in Path("/sys/fs/cgroup/pids", ahead.cgroup_parent).iterdir():
        if directory.is_dir():
            # Init comes first, and takes the others with it.
            for pid in sorted(map(int, (directory / "cgroup.procs").read_text().split()))[:1]:
                pidfd = os.pidfd_open(pid)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [])  # until it has closed all that it had
                os.close(pidfd)
    with Sandbox.create(socket=ahead.socket) as sandbox:
        assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_they_go_when_nobody_asks_any_more(ahead: DaemonProcess) -> None:
    ask(ahead)
    until(lambda: len(directories(ahead)) >= 2)
    until(lambda: not directories(ahead))
    assert os.listdir(ahead.state_dir / "storage" / "uppers") == []


def test_an_image_that_only_they_stand_on_can_be_removed(
    ahead: DaemonProcess, base_image_tar: Path
) -> None:
    with Daemon(ahead.socket) as client, base_image_tar.open("rb") as tar:
        client.import_image_tar("other", tar)
        for _ in range(2):
            Sandbox.create("other", socket=ahead.socket).kill()
        until(lambda: len(directories(ahead)) >= 2)
        client.remove_image("other")
        assert "other" not in [image.name for image in client.list_images()]


def test_a_killed_daemon_leaves_them_to_the_next_which_removes_them(ahead: DaemonProcess) -> None:
    ask(ahead)
    until(lambda: len(directories(ahead)) >= 2)
    left = directories(ahead)
    ahead.kill()
    ahead.start()
    assert not left & directories(ahead)
