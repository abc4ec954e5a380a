"""Launching is all or nothing, destroying complete, and a restart finds everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sandboxd.errors import (
    Conflict,
    ImageNotFound,
    InternalError,
    InvalidRequest,
    SandboxGone,
    VenusError,
)
from sandboxd.launch import Launcher
from sandboxd.storage import Collection
from tests.kernel.node.harness import IMAGE, Box, request, running_box, running_launcher

STEPS = ("run directory", "image", "layers", "upper", "groups", "control socket", "init")


def mount_lines() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def is_running(pid: int) -> bool:
    """Also false for a zombie, which only its parent can remove."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def traces(launcher: Launcher) -> dict[str, object]:
    """All that a sandbox could leave on the machine, as something that can be compared."""
    parent, state_dir = launcher._config.cgroup_parent, str(launcher._config.state_dir)
    groups = [
        os.path.join(base, name)
        for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir())
        for base, names, _ in os.walk(hierarchy / parent)
        for name in names
    ]
    return {
        "groups": groups,
        "uppers": launcher._volumes.names(Collection.UPPERS),
        "run directories": os.listdir(launcher._config.sandboxes_dir),
        "mounts": [line for line in mount_lines() if parent in line or state_dir in line],
        "descriptors": len(os.listdir("/proc/self/fd")),
        # Namespaces live as long as a process, a descriptor or a mount of theirs.
        "children": [child.pid for child in psutil.Process().children()],
        "threads": psutil.Process().num_threads(),
        "images held": dict(launcher.images._users),
        "remnants": launcher.remnants(),
    }


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failing", range(len(STEPS)), ids=STEPS)
def test_a_failure_at_any_step_leaves_nothing(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, failing: int, when: str
) -> None:
    assert tuple(step.name for step in launcher._steps) == STEPS
    before = traces(launcher)
    step = launcher._steps[failing]

    def fail(building: object) -> None:
        if when == "after":
            step.do(building)  # type: ignore[arg-type]
        raise OSError(5, "injected")

    changed = list(launcher._steps)
    changed[failing] = replace(step, do=fail)
    monkeypatch.setattr(launcher, "_steps", tuple(changed))
    with pytest.raises(InternalError, match="EIO"):
        launcher.launch(request())
    assert traces(launcher) == before


def test_a_setup_step_that_init_cannot_do_is_named(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandboxd import launch
    from sandboxd.init_protocol import MakeDirectory

    before = traces(launcher)
    original = launch.setup_ops
    monkeypatch.setattr(
        launch, "setup_ops", lambda spec: [*original(spec), MakeDirectory("/proc/impossible")]
    )
    with pytest.raises(InternalError, match="/proc/impossible"):
        launcher.launch(request())
    assert traces(launcher) == before


def test_destroy_is_idempotent_and_takes_what_was_never_there(launcher: Launcher) -> None:
    before = traces(launcher)
    wanted = request()
    launcher.launch(wanted)
    launcher.destroy(wanted.sandbox_id)
    launcher.destroy(wanted.sandbox_id)
    launcher.destroy("never-was")
    assert traces(launcher) == before


@pytest.mark.parametrize("sandbox_id", ["", ".", "..", "../x", "a/b", "x" * 64, "a\0b"])
def test_an_id_cannot_be_a_path(launcher: Launcher, sandbox_id: str) -> None:
    for operation in (
        launcher.destroy,
        lambda name: launcher.launch(replace(request(), sandbox_id=name)),
    ):
        with pytest.raises(InvalidRequest):
            operation(sandbox_id)


def test_a_taken_id_is_refused_and_its_owner_unharmed(launcher: Launcher) -> None:
    wanted = request()
    box = Box(launcher, launcher.launch(wanted))
    with pytest.raises(Conflict):
        launcher.launch(wanted)
    assert box.output("echo alive") == "alive"
    box.close()
    launcher.destroy(wanted.sandbox_id)


def test_an_unknown_image(launcher: Launcher) -> None:
    before = traces(launcher)
    with pytest.raises(ImageNotFound):
        launcher.launch(replace(request(), image="missing"))
    assert traces(launcher) == before


def test_destroy_when_init_is_dead(launcher: Launcher) -> None:
    before = traces(launcher)
    launched = launcher.launch(request())
    os.kill(launched.init_pid, signal.SIGKILL)
    launcher.destroy(launched.sandbox_id)
    assert traces(launcher) == before


def test_destroy_when_everything_is_frozen_and_busy(launcher: Launcher) -> None:
    before = traces(launcher)
    wanted = request()
    box = Box(launcher, launcher.launch(wanted))
    for _ in range(5):
        box.start("sh", "-c", "cd /root; setsid sleep 1000 & exec sleep 1000 > held")
    box.launched.set_frozen(True)
    box.close()
    launcher.destroy(wanted.sandbox_id)
    assert traces(launcher) == before


def test_a_frozen_sandbox_stands_still_and_goes_on(launcher: Launcher) -> None:
    with running_box(launcher) as box:
        box.start("sh", "-c", "while :; do :; done")
        box.launched.set_frozen(True)
        still_s = box.launched.usage().cpu_s
        time.sleep(0.1)  # time must pass for the absence of work to be seen
        assert box.launched.usage().cpu_s == still_s
        box.launched.set_frozen(False)
        assert box.output("echo alive") == "alive"
        assert box.launched.usage().cpu_s > still_s


def test_an_image_in_use_stays(launcher: Launcher) -> None:
    with running_box(launcher) as box:
        with pytest.raises(Conflict, match="in use"):
            launcher.images.remove(IMAGE)
        assert box.output("ls /etc/passwd")


def test_an_exec_group_with_survivors_goes_with_the_sandbox(launcher: Launcher) -> None:
    before = traces(launcher)
    with running_box(launcher) as box:
        leaver = box.start("sh", "-c", "setsid sleep 1000 & exit 0")
        box.client.wait_exit(leaver)
        assert not box.launched.remove_exec_cgroup(leaver)
        ended = box.start("true")
        box.client.wait_exit(ended)
        assert box.launched.remove_exec_cgroup(ended)
        assert box.launched.remove_exec_cgroup(ended)
    assert traces(launcher) == before


def test_an_exec_group_kills_what_escaped(launcher: Launcher) -> None:
    with running_box(launcher) as box:
        exec_id = box.start("sh", "-c", "(setsid setsid sleep 1000 &) ; exec sleep 1000")
        assert "sleep" in box.output("ps -eo comm")
        assert box.client.kill(exec_id) == 0
        assert box.client.wait_exit(exec_id).signal == signal.SIGKILL
        assert "sleep" not in box.output("ps -eo comm")


def test_one_hundred_leave_nothing(launcher: Launcher) -> None:
    launcher.destroy(launcher.launch(request()).sandbox_id)  # what is made once is made now
    before = traces(launcher)
    for _ in range(100):
        launcher.destroy(launcher.launch(request()).sandbox_id)
    assert traces(launcher) == before


KILLED_OWNER = """
import os, signal, sys
from pathlib import Path
from sandboxd.config import Config
from sandboxd.launch import Launcher, LaunchRequest, Limits
state, name, image = sys.argv[1:]
launcher = Launcher(Config(state_dir=Path(state), run_dir=Path("/run") / name, cgroup_parent=name,
                           storage_size_bytes=4 << 30))
launcher.prepare()
if not launcher.images.list():
    launcher.images.import_tar("base", open(image, "rb"))
for sandbox_id in ("lives", "dies", "unknown"):
    launched = launcher.launch(LaunchRequest(sandbox_id, "base", 7, Limits(64 << 20, 20, 1.0, None),
                                             sandbox_id))
    print(sandbox_id, launched.init_pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State directory of the owners that are killed; the image is imported once."""
    return tmp_path_factory.mktemp("killed")


@pytest.fixture
def after_a_kill(base_image_tar: Path, killed_state: Path) -> tuple[Path, str, dict[str, int]]:
    """State directory, name, and the pids of the inits that a killed owner left running."""
    name = f"venus-k{os.getpid()}"
    result = subprocess.run(
        [sys.executable, "-c", KILLED_OWNER, killed_state, name, base_image_tar],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert result.returncode == -signal.SIGKILL
    pids = {line.split()[0]: int(line.split()[1]) for line in result.stdout.splitlines()}
    assert set(pids) == {"lives", "dies", "unknown"}
    return killed_state, name, pids


def test_after_a_kill_everything_is_found_and_adopted_or_removed(
    after_a_kill: tuple[Path, str, dict[str, int]],
) -> None:
    state_dir, name, pids = after_a_kill
    os.kill(pids["dies"], signal.SIGKILL)
    with running_launcher(state_dir, name) as launcher:
        assert launcher.remnants() == set(pids)
        box = Box(launcher, launcher.adopt("lives", 7, pids["lives"]))
        assert box.output("echo alive; hostname").split() == ["alive", "lives"]
        with pytest.raises(Conflict, match="in use"):
            launcher.images.remove(IMAGE)
        refusals: list[Callable[[], object]] = [
            lambda: launcher.adopt("dies", 7, pids["dies"]),
            lambda: launcher.adopt("unknown", 7, os.getpid()),
            lambda: launcher.adopt("unknown", 8, pids["unknown"]),
            lambda: launcher.adopt("never-was", 7, pids["unknown"]),
        ]
        for refused in refusals:
            with pytest.raises((SandboxGone, VenusError)):
                refused()
        launcher.destroy("dies")
        launcher.destroy("unknown")
        assert not is_running(pids["unknown"])
        assert launcher.remnants() == {"lives"}
        box.close()
        launcher.destroy("lives")
        assert traces(launcher)["groups"] == []
        assert launcher.remnants() == set()
    assert not Path("/run", name).exists()
    assert not any(str(state_dir) in line for line in mount_lines())


def test_closing_the_launcher_leaves_living_sandboxes_running(
    after_a_kill: tuple[Path, str, dict[str, int]],
) -> None:
    state_dir, name, pids = after_a_kill
    with running_launcher(state_dir, name) as launcher:
        launcher.adopt("lives", 7, pids["lives"])
        launcher.close()
        assert is_running(pids["lives"])
        launcher.prepare()
        launcher.adopt("lives", 7, pids["lives"])
