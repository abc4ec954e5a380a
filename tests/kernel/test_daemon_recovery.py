"""The daemon dies and comes back: nothing leaks, what lives is adopted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from sandboxd.client import Daemon, Sandbox
from sandboxd.errors import NotFound, SandboxGone, VenusError
from tests.support.daemon import DaemonProcess

SANDBOXES = 20


@pytest.fixture
def victim(daemon: DaemonProcess) -> DaemonProcess:
    """The daemon of the session, to be killed; each test leaves it running."""
    return daemon


def restart(daemon: DaemonProcess) -> None:
    daemon.kill()
    daemon.start()


def run_detached(sandbox_id: str, socket: str, command: str, **more: object) -> threading.Thread:
    """A command whose stream is open when the daemon dies."""

    def run() -> None:
        # The connection is lost with the daemon; that is what this is for.
        with contextlib.suppress(VenusError):
            sandbox = Sandbox.connect(sandbox_id, socket=socket)
            sandbox.commands.run(command, check=False, **more)  # type: ignore[call-overload]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def eventually(condition: object, what: str, patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_sandbox_that_was_to_go_with_its_command_goes_with_the_daemon(
    victim: DaemonProcess,
) -> None:
    made = [
        Sandbox.start("echo up; sleep 1000", remove=remove, socket=victim.socket)
        for remove in (True, False)
    ]
    for _, command in made:
        next(iter(command))
    restart(victim)
    found = {info.id for info in Sandbox.list(socket=victim.socket)}
    assert [sandbox.sandbox_id in found for sandbox, _ in made] == [False, True]
    for sandbox, command in made:
        command.disconnect()
        assert sandbox.kill() == (sandbox.sandbox_id in found)
        sandbox.close()


def test_killed_amid_twenty_sandboxes(victim: DaemonProcess) -> None:
    sandboxes = [
        Sandbox.create(socket=victim.socket, envs={"N": str(index)}, metadata={"n": str(index)})
        for index in range(SANDBOXES)
    ]
    threads = []
    for index, sandbox in enumerate(sandboxes):
        sandbox.files.write("/root/mark", f"mark {index}")
        if index % 4 == 1:  # writes more than a pipe holds, before and after
            command = (
                "i=0; while :; do echo $i > /tmp/progress; printf '%01000d' 0; i=$((i+1)); done"
            )
            threads.append(run_detached(sandbox.sandbox_id, victim.socket, command, timeout=600))
        if index % 4 == 2:  # a quiet one with a background process
            sandbox.commands.run("sleep 1000 &")
            threads.append(run_detached(sandbox.sandbox_id, victim.socket, "sleep 999"))
        if index % 4 == 3:  # ends while no daemon is there
            sandbox.files.write("/tmp/hold", b"")
            command = "while [ -e /tmp/hold ]; do sleep 0.05; done; echo ended > /root/ended"
            threads.append(run_detached(sandbox.sandbox_id, victim.socket, command))
    for index, sandbox in enumerate(sandboxes):
        running = 2 if index % 4 == 2 else (1 if index % 4 else 0)
        eventually(lambda s=sandbox, r=running: s.metrics().execs_running == r, "not running")  # type: ignore[misc]
    before = {each.sandbox_id: each.get_info() for each in sandboxes}

    victim.kill()
    for index, sandbox in enumerate(sandboxes):
        if index % 4 == 3:  # let it end while no daemon watches
            (inside(sandbox) / "tmp/hold").unlink()
            eventually((inside(sandbox) / "root/ended").exists, "it does not end")
    victim.start()

    for index, sandbox in enumerate(sandboxes):
        after = sandbox.get_info()
        assert after == before[sandbox.sandbox_id]
        run = sandbox.commands.run
        assert run("echo $N; cat /root/mark").stdout == f"{index}\nmark {index}"
        processes = run("ps -eo args").stdout
        if index % 4 == 1:
            first = int(run("cat /tmp/progress").stdout or 0)
            eventually(
                lambda r=run, f=first: int(r("cat /tmp/progress").stdout or 0) > f,  # type: ignore[misc]
                "the writer is stuck on its pipe",
            )
        if index % 4 == 2:
            assert "sleep 999" in processes and "sleep 1000" in processes
            assert sandbox.metrics().execs_running == 2
        if index % 4 == 3:
            assert run("cat /root/ended").stdout == "ended\n"
            eventually(lambda s=sandbox: s.metrics().execs_running == 0, "not released")  # type: ignore[misc]
    counters = Daemon(victim.socket).info().counters
    assert counters["sandboxes_adopted"] == SANDBOXES
    for sandbox in sandboxes:
        sandbox.kill()
    assert Sandbox.list(socket=victim.socket) == []
    for thread in threads:
        thread.join(10)


def inside(sandbox: Sandbox) -> Path:
    """The sandbox's root as the host sees it, daemon or no daemon."""
    return Path(f"/proc/{sandbox.info.init_pid}/root")


def test_a_second_restart_adopts_again_and_ids_of_commands_do_not_return(
    victim: DaemonProcess,
) -> None:
    with Sandbox.create(socket=victim.socket) as sandbox:
        sandbox.commands.run("sleep 1000 &")
        seen = set()
        for _ in range(3):
            with sandbox.commands.run("echo x", True) as handle:
                assert handle.exec_id not in seen
                seen.add(handle.exec_id)
                assert handle.wait().stdout == "x\n"
            restart(victim)
        assert "sleep" in sandbox.commands.run("ps -eo comm").stdout


def test_a_timeout_holds_while_no_daemon_runs(victim: DaemonProcess) -> None:
    with Sandbox.create(socket=victim.socket) as sandbox:
        run_detached(sandbox.sandbox_id, victim.socket, "setsid sleep 998 & sleep 998", timeout=1.0)
        eventually(lambda: "sleep" in ps(sandbox), "it does not start")
        victim.kill()
        time.sleep(1.5)
        victim.start()
        assert "sleep" not in ps(sandbox)


def ps(sandbox: Sandbox) -> str:
    return sandbox.commands.run("ps -eo comm").stdout


def test_deadlines_survive(victim: DaemonProcess) -> None:
    short = Sandbox.create(socket=victim.socket, timeout=1.0)
    longer = Sandbox.create(socket=victim.socket, timeout=6.0)
    deadline = longer.info.expires_at
    assert deadline is not None
    victim.kill()
    time.sleep(1.1)
    victim.start()
    with pytest.raises(NotFound):
        short.get_info()
    if time.time() < deadline - 1:  # a slow machine may have used it up by the restart alone
        assert longer.is_running()
        assert abs((longer.get_info().expires_at or 0) - deadline) < 0.5
    eventually(lambda: not longer.is_running(), "the adopted sandbox does not expire")
    assert time.time() > deadline - 0.1


def test_a_sandbox_whose_init_died_meanwhile_is_removed(victim: DaemonProcess) -> None:
    sandbox = Sandbox.create(socket=victim.socket)
    pid = sandbox.info.init_pid
    assert pid is not None
    victim.kill()
    os.kill(pid, signal.SIGKILL)
    victim.start()
    with pytest.raises(NotFound):
        sandbox.get_info()
    assert not any((victim.run_dir / "sandboxes").iterdir())


def test_an_init_that_dies_is_noticed_and_told(victim: DaemonProcess) -> None:
    sandbox = Sandbox.create(socket=victim.socket)
    results = []
    other = Sandbox.connect(sandbox.sandbox_id, socket=victim.socket)
    thread = threading.Thread(
        target=lambda: results.append(other.commands.run("sleep 1000", check=False))
    )
    thread.start()
    eventually(lambda: sandbox.metrics().execs_running == 1, "it does not start")
    assert sandbox.info.init_pid is not None
    os.kill(sandbox.info.init_pid, signal.SIGKILL)
    thread.join(10)
    assert [each.reason.value for each in results] == ["lost"]
    eventually(lambda: Sandbox.list(socket=victim.socket) == [], "the dead sandbox is still listed")
    with pytest.raises(SandboxGone, match="init was killed"):
        sandbox.get_info()


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1])
def test_killed_during_creates_and_destroys(victim: DaemonProcess, delay_s: float) -> None:
    created: list[str] = []
    started = threading.Barrier(5)

    def churn() -> None:
        started.wait()
        for _ in range(50):
            try:
                sandbox = Sandbox.create(socket=victim.socket)
                created.append(sandbox.sandbox_id)
                if len(created) % 2:
                    sandbox.kill()
                    created.remove(sandbox.sandbox_id)
            except (VenusError, ValueError):
                return

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(0.1 + delay_s)
    victim.kill()
    for thread in threads:
        thread.join(30)
    victim.start()
    listed = {each.id for each in Sandbox.list(socket=victim.socket)}
    # Whoever was told of a sandbox finds it; a destroy that was cut may or may not have happened.
    assert len(set(created) - listed) <= 4
    for sandbox_id in listed:
        sandbox = Sandbox.connect(sandbox_id, socket=victim.socket)
        assert sandbox.commands.run("echo ok").stdout == "ok\n"
        sandbox.kill()
    assert not any((victim.run_dir / "sandboxes").iterdir())
    assert processes_of_sandboxes(victim) == []


def processes_of_sandboxes(daemon: DaemonProcess) -> list[int]:
    """Processes in any group below the daemon's parent group. Zombies are left out: the inits of
    a killed daemon are children of the machine's first process, which reaps when it likes."""
    found = []
    for process in psutil.process_iter():
        try:
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            zombie = process.status() == psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):
            continue
        if f"/{daemon.cgroup_parent}/" in groups and not zombie:
            found.append(process.pid)
    return found


def test_a_second_daemon_on_the_same_directory_refuses(victim: DaemonProcess) -> None:
    places = {"run": victim.run_dir, "state": victim.state_dir}
    flags = [f"--{name}-dir={place}" for name, place in places.items()]
    second = subprocess.run(
        [sys.executable, "-m", "sandboxd", *flags, f"--cgroup-parent={victim.cgroup_parent}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert "another daemon" in second.stderr and str(victim.pid) in second.stderr
    with Daemon(victim.socket) as client:
        client.check_health()


def test_sigterm_amid_running_commands_leaves_nothing(victim: DaemonProcess) -> None:
    sandboxes = [Sandbox.create(socket=victim.socket) for _ in range(3)]
    results = []

    def run(sandbox: Sandbox) -> None:
        other = Sandbox.connect(sandbox.sandbox_id, socket=victim.socket)
        results.append(other.commands.run("setsid sleep 1000 & yes", check=False).reason.value)

    threads = [threading.Thread(target=run, args=(each,)) for each in sandboxes]
    for thread in threads:
        thread.start()
    for sandbox in sandboxes:
        eventually(lambda s=sandbox: s.metrics().execs_running == 1, "it does not start")  # type: ignore[misc]
    victim.stop()
    for thread in threads:
        thread.join(20)
    assert results == ["killed"] * 3
    assert victim.leftovers() == []
    assert processes_of_sandboxes(victim) == []
    assert not victim.run_dir.exists()
    victim.start()
    with Daemon(victim.socket) as client:
        assert [each.name for each in client.list_images()] == ["base"]
