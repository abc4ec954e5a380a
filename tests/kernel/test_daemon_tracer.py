"""The daemon, or the tracer, is killed in the middle of a capture: at any system call of it.

Programs of the fidelity tests say whether they still have all that they had: connections whose
sockets a capture puts into another mode, terminals that it empties, what it makes threads do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sandboxd.client import Sandbox, Template
from sandboxd.errors import InternalError, VenusError
from tests.fidelity.conftest import program_layer
from tests.fidelity.rows import GO, IS_FORK, READY, RESULT
from tests.kernel.test_daemon_forks import layers_of, number_of, start_counter
from tests.kernel.test_daemon_recovery import eventually, processes_of_sandboxes
from tests.support.daemon import DaemonProcess, serving

__all__ = ["program_layer"]

POINTS = int(os.environ.get("VENUS_INTERRUPT_POINTS", "6"))
SOURCE = Path(__file__).parent / "interrupt" / "interrupt.c"


@pytest.fixture(scope="module")
def interrupt_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("interrupt") / "interrupt"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", binary], check=True)
    return binary


@pytest.fixture(scope="module")
def victim(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    process = DaemonProcess(
        f"venus-x{os.getpid()}", tmp_path_factory.mktemp("venus"), {"storage_backend": "plain"}
    )
    with serving(process, base_image_tar):
        yield process


def tracer_of(daemon: DaemonProcess, sandbox: Sandbox) -> int:
    run_dir = str(daemon.run_dir / "sandboxes" / sandbox.sandbox_id)
    [found] = [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if run_dir.encode() in _command_of(path).split(b"\0")
    ]
    return found


def _command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


class Interrupter:
    """Counts the system calls of a tracer, and kills somebody at one of them."""

    def __init__(self, binary: Path, tracer: int, at: int, *victims: int) -> None:
        self._process = subprocess.Popen(
            [binary, *map(str, (tracer, at, *victims))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def calls(self) -> int:
        """Ends it; how many calls there were."""
        self._process.terminate()
        assert self._process.stdout is not None
        # Not communicate: what came with "ready" is in the buffer of the stream already.
        said = self._process.stdout.read()
        assert self._process.wait(60) == 0, f"ended with {self._process.returncode}: {said!r}"
        return int(said)


def start_program(daemon: DaemonProcess, layer: Path, name: str) -> Sandbox:
    sandbox = Sandbox.create(socket=daemon.socket)
    sandbox.commands.run("mkdir -p /var/tmp && chmod 1777 /var/tmp")
    sandbox.files.write("/root/program", (layer / "t" / name).read_bytes(), mode=0o755)
    sandbox.commands.run("/root/program > /dev/null 2>&1 < /dev/null &")
    wait_for(sandbox, READY, "ready")
    return sandbox


def wait_for(sandbox: Sandbox, path: str, content: str) -> None:
    def read() -> str:
        return sandbox.commands.run(["cat", path], check=False).stdout

    eventually(lambda: read() != "", f"nothing in {path}")
    assert read() == content


def check(sandbox: Sandbox) -> None:
    """All is as it was, in a fork and in the sandbox itself."""
    [fork] = sandbox.fork()
    with fork:
        fork.files.write(IS_FORK, "")
        fork.files.write(GO, "")
        wait_for(fork, RESULT, "ok")
    sandbox.files.write(GO, "")
    wait_for(sandbox, RESULT, "ok")


def points(calls: int) -> list[int]:
    """All over a capture, the first and the last call too."""
    return [max(1, round(calls * number / (POINTS - 1))) for number in range(POINTS)]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["tcp", "terminal_queues", "system_v", "threads"])
def test_a_sandbox_survives_the_daemons_end_amid_its_capture(
    victim: DaemonProcess, program_layer: Path, interrupt_binary: Path, name: str
) -> None:
    with start_program(victim, program_layer, name) as sandbox:
        sandbox.snapshot().remove()
        tracer = tracer_of(victim, sandbox)
        counter = Interrupter(interrupt_binary, tracer, 0)
        sandbox.snapshot().remove()
        calls = counter.calls()
        assert calls > 500, calls
        for at in points(calls):
            interrupter = Interrupter(interrupt_binary, tracer, at, victim.pid)
            with contextlib.suppress(VenusError, ValueError):
                while True:  # the last ones may fall into the next capture
                    sandbox.snapshot().remove()
            assert victim.has_ended()
            assert interrupter.calls() == at
            victim.start()
            assert tracer_of(victim, sandbox) == tracer, "the tracer was started anew"
        check(sandbox)
    for info in Template.list(socket=victim.socket):
        Template.get(info.id, socket=victim.socket).remove()
    assert layers_of(victim) == [] and processes_of_sandboxes(victim) == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_sandbox_does_not_survive_its_tracers_end_amid_a_capture(
    victim: DaemonProcess, interrupt_binary: Path, restarted: bool
) -> None:
    with Sandbox.create(socket=victim.socket) as sandbox:
        start_counter(sandbox)
        sandbox.snapshot().remove()
        counter = Interrupter(interrupt_binary, tracer_of(victim, sandbox), 0)
        sandbox.snapshot().remove()
        calls = counter.calls()
    for at in points(calls)[1:-1]:
        sandbox = Sandbox.create(socket=victim.socket)
        start_counter(sandbox)
        sandbox.snapshot().remove()
        tracer = tracer_of(victim, sandbox)
        interrupter = Interrupter(interrupt_binary, tracer, at, tracer)
        with pytest.raises(InternalError, match="its tracer was killed"):
            sandbox.snapshot()
        interrupter.calls()
        if restarted:
            victim.kill()
            victim.start()
        eventually(lambda: Sandbox.list(socket=victim.socket) == [], "it is still there")
        with pytest.raises(VenusError) as gone:
            sandbox.get_info()
        assert restarted or "a snapshot of it was cut" in str(gone.value)
        assert processes_of_sandboxes(victim) == []
        assert not list((victim.run_dir / "sandboxes").iterdir())
        assert layers_of(victim) == []


def test_both_killed_amid_a_capture(victim: DaemonProcess, interrupt_binary: Path) -> None:
    sandbox = Sandbox.create(socket=victim.socket)
    start_counter(sandbox)
    sandbox.snapshot().remove()
    tracer = tracer_of(victim, sandbox)
    interrupter = Interrupter(interrupt_binary, tracer, 400, victim.pid, tracer)
    with pytest.raises((VenusError, ValueError)):
        sandbox.snapshot()
    assert interrupter.calls() == 400
    assert victim.has_ended()
    victim.start()
    assert Sandbox.list(socket=victim.socket) == []
    assert "a snapshot of it was cut" in victim.log()
    assert processes_of_sandboxes(victim) == [] and layers_of(victim) == []


def test_an_idle_tracer_is_replaced_and_ends_with_its_sandbox(victim: DaemonProcess) -> None:
    with Sandbox.create(socket=victim.socket) as sandbox:
        start_counter(sandbox)
        first, second = sandbox.snapshot(), sandbox.snapshot()
        assert second.info.own_bytes < first.info.own_bytes / 2
        os.kill(tracer_of(victim, sandbox), signal.SIGKILL)
        third = sandbox.snapshot()
        assert third.info.own_bytes > first.info.own_bytes / 2
        # What it knows outlives the daemon.
        victim.kill()
        victim.start()
        fourth = sandbox.snapshot()
        assert fourth.info.own_bytes < first.info.own_bytes / 2
        tracer = psutil.Process(tracer_of(victim, sandbox))
        first_number = number_of(sandbox)
        eventually(lambda: number_of(sandbox) > first_number, "it stands still")
        for template in (first, second, third, fourth):
            template.remove()
    # Its parent is the machine's first process, which reaps when it likes.
    assert not tracer.is_running() or tracer.status() == psutil.STATUS_ZOMBIE
