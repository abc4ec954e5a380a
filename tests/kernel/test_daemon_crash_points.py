"""kill -9 of the daemon before and after every step of what it does for clients.

The steps are not listed here: the daemon tells which it passes (tests/support/crashing_daemon.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxd.client import Sandbox, Template
from sandboxd.errors import VenusError
from tests.kernel.test_daemon_forks import COUNTER, number_of, start_counter
from tests.kernel.test_daemon_recovery import eventually, processes_of_sandboxes
from tests.kernel.test_daemon_template_recovery import held_by, ids_of
from tests.support.daemon import DaemonProcess, serving
from tests.support.footprint import groups_of, layers_of, records_of

RECIPE = {
    "image": "base",
    "files": [{"path": "/root/file", "content": "eA=="}],
    "setup": [{"command": "echo y >> /root/file"}],
    "warm": [{"command": ["python3", "-c", COUNTER], "ready": "test -s /tmp/number"}],
}


class CrashingDaemon(DaemonProcess):
    """Dies at the step that it is told."""

    module = "tests.support.crashing_daemon"

    def crash_at(self, step: str) -> None:
        (self.state_dir / "at").write_text(step)

    def passed(self) -> list[str]:
        """Steps since the last call, each once."""
        path = self.state_dir / "passed"
        steps = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return list(dict.fromkeys(steps))

    def restart(self) -> None:
        """After it died by itself."""
        assert self.has_ended(), "it has not come to that step"
        (self.state_dir / "at").unlink()
        self.start()


@pytest.fixture(scope="module")
def crashing(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CrashingDaemon]:
    state_dir = tmp_path_factory.mktemp("venus")
    daemon = CrashingDaemon(
        f"venus-c{os.getpid()}",
        state_dir,
        {"storage_backend": "plain", "crash_dir": str(state_dir), "max_layers": "1"},
    )
    with serving(daemon, base_image_tar):
        yield daemon


def original_of(daemon: CrashingDaemon) -> Sandbox:
    sandbox = Sandbox.create(socket=daemon.socket)
    start_counter(sandbox)
    return sandbox


def create(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    return Sandbox.create(socket=socket).sandbox_id


def run(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    assert original.commands.run("cat", stdin="x").stdout == "x"
    return ""


def start(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    original.commands.start("sleep 1000")
    return ""


def kill(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    other.kill()
    return ""


def snapshot(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    return original.snapshot().template_id


def fork(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    return original.fork()[0].sandbox_id


def fork_template(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    return template.fork()[0].sandbox_id


def snapshot_of_fork(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    """With one layer more than may be."""
    return template.fork()[0].snapshot().template_id


def build(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    return Template.build(RECIPE, socket=socket).template_id


def remove(socket: str, original: Sandbox, template: Template, other: Sandbox) -> str:
    template.remove()
    return ""


def idle_groups(daemon: CrashingDaemon, sandbox: Sandbox) -> set[int]:
    """Ids of commands whose groups are there and have no process."""
    place = f"/{sandbox.sandbox_id}/exec-"
    groups = [each for each in groups_of(daemon) if place in each]
    return {
        int(each.rpartition("-")[2])
        for each in groups
        if not Path(each, "cgroup.procs").read_text()
    }


def check_and_clear(daemon: CrashingDaemon, original: str) -> bool:
    """Everything that is there is whole, and once it is removed nothing is left. Whether the
    original lives on."""
    templates = ids_of(daemon)
    assert (
        templates == held_by(daemon) == {each.removesuffix(".json") for each in records_of(daemon)}
    )
    listed = {each.id for each in Sandbox.list(socket=daemon.socket)}
    for sandbox_id in listed:
        sandbox = Sandbox.connect(sandbox_id, socket=daemon.socket)
        if first := number_of(sandbox):
            eventually(lambda s=sandbox, n=first: number_of(s) > n, "it stands still")  # type: ignore[misc]
        else:
            assert sandbox_id != original and sandbox.commands.run("echo x").stdout == "x\n"
        commands = {each.exec_id for each in sandbox.commands.list()}
        eventually(
            lambda s=sandbox, c=commands: idle_groups(daemon, s) <= c,  # type: ignore[misc]
            "groups are left",
        )
        if sandbox_id != original:
            sandbox.kill()
    for template_id in templates:
        template = Template.get(template_id, socket=daemon.socket)
        [made] = template.fork()
        assert number_of(made) > 0
        made.kill()
        template.remove()
    assert layers_of(daemon) == [] and held_by(daemon) == set()
    left = [original] if original in listed else []
    assert os.listdir(daemon.run_dir / "sandboxes") == left
    assert os.listdir(daemon.state_dir / "storage" / "uppers") == left
    return original in listed


ACTS = (
    create, run, start, kill, snapshot, fork, fork_template, snapshot_of_fork, build, remove,
)  # fmt: skip


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("act", ACTS)
def test_killed_at_every_step(
    crashing: CrashingDaemon, act: Callable[[str, Sandbox, Template, Sandbox], str]
) -> None:
    socket, original = crashing.socket, original_of(crashing)
    template, other = original.snapshot(), Sandbox.create(socket=socket)
    crashing.passed()
    act(socket, original, template, other)
    steps = crashing.passed()
    assert len(steps) >= 4, steps
    assert check_and_clear(crashing, original.sandbox_id)
    # A build passes most steps of the others too, and takes long: one in three, or all if asked.
    stride = 3 if act is build and "VENUS_CRASH_ALL" not in os.environ else 1
    for step in steps[::stride]:
        template, other = original.snapshot(), Sandbox.create(socket=socket)
        crashing.crash_at(step)
        told = ""
        with contextlib.suppress(VenusError, ValueError):
            told = act(socket, original, template, other)
        crashing.restart()
        there = ids_of(crashing) | {each.id for each in Sandbox.list(socket=socket)}
        assert not told or told in there, step
        assert act is remove or template.template_id in there, step
        assert check_and_clear(crashing, original.sandbox_id), step
    original.kill()
    assert processes_of_sandboxes(crashing) == []
