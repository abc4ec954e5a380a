"""`inspect eval`, unmodified, finds the provider by its entry point and leaves no sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inspect_ai.log import list_eval_logs, read_eval_log

from sandboxd.client import CommandInfo, Sandbox
from tests.providers.inspect_task import SAMPLES

ROOT = Path(__file__).parents[2]
TASK = Path(__file__).parent / "inspect_task.py"
Inspect = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def inspect(tmp_path: Path, environment: None) -> Iterator[Inspect]:
    """Starts `inspect ARGUMENTS` where this project is installed, as far as Python can tell."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "installed" / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(text)
    points = project["entry-points"]["inspect_ai"].items()
    lines = ["[inspect_ai]", *(f"{name} = {value}" for name, value in points)]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(metadata.parent), str(ROOT)])
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "inspect_ai", *arguments],
            env={**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        print(process.stdout.read() if process.stdout and not process.stdout.closed else "")
        process.wait()


def evaluate(inspect: Inspect, task: str) -> subprocess.Popen[str]:
    return inspect(
        "eval", f"{TASK}@{task}", "--model", "mockllm/model", "--display", "plain",
        "--log-dir", "logs", "--max-samples", str(SAMPLES), "--max-tasks", "1",
    )  # fmt: skip


def wait_for_sleepers(socket: str) -> list[CommandInfo]:
    """All samples are in their command."""
    deadline = time.monotonic() + 20
    while True:
        found: list[CommandInfo] = []
        for info in Sandbox.list(socket=socket):
            found += Sandbox.connect(info.id, socket=socket).commands.list()
        if len(found) == SAMPLES:
            return found
        assert time.monotonic() < deadline, f"only {len(found)} samples run"
        time.sleep(0.05)


def test_samples_at_once_have_sandboxes_of_their_own(inspect: Inspect, tmp_path: Path) -> None:
    process = evaluate(inspect, "quick")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    [log] = list_eval_logs(str(tmp_path / "logs"))
    result = read_eval_log(log)
    assert result.status == "success", output
    assert result.samples is not None and result.results is not None
    assert [sample.error for sample in result.samples] == [None] * SAMPLES
    assert result.results.scores[0].metrics["accuracy"].value == 1.0


def test_an_interrupt_leaves_no_sandbox(inspect: Inspect, daemon_socket: str) -> None:
    process = evaluate(inspect, "endless")
    wait_for_sleepers(daemon_socket)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert Sandbox.list(socket=daemon_socket) == []


def test_cleanup_removes_what_a_killed_inspect_has_left(
    inspect: Inspect, daemon_socket: str
) -> None:
    process = evaluate(inspect, "endless")
    wait_for_sleepers(daemon_socket)
    process.kill()
    process.communicate()
    with Sandbox.create(socket=daemon_socket) as other:
        left = Sandbox.list({"made-by": "inspect-ai"}, socket=daemon_socket)
        assert len(left) == SAMPLES
        assert {each.labels["task"] for each in left} == {"endless"}
        first = left[0].id
        assert inspect("sandbox", "cleanup", "venus", first).wait() == 0
        now = Sandbox.list({"made-by": "inspect-ai"}, socket=daemon_socket)
        assert {each.id for each in now} == {each.id for each in left} - {first}
        assert inspect("sandbox", "cleanup", "venus").wait() == 0
        assert [info.id for info in Sandbox.list(socket=daemon_socket)] == [other.sandbox_id]
