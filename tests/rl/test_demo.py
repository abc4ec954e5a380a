"""The demo as a user runs it, small: all parts, then an interrupt in the middle of training."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from sandboxd.client import Daemon
from tests.support.daemon import DaemonProcess
from venusrl.report.metrics import read_json_lines

pytestmark = [pytest.mark.rl, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def command(daemon: DaemonProcess, out: Path, *more: str) -> list[str]:
    arguments = ["--quick", "--socket", daemon.socket, "--out", str(out), *more]
    return [sys.executable, "-m", "venusrl.demo", *arguments]


@pytest.fixture(scope="module")
def finished(daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a quick run that came to its end."""
    out = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        command(daemon, out, "--seed", "5"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"report: {out / 'report.html'}" in done.stdout.splitlines()[-1]
    return out


def test_a_run_leaves_figures_that_agree_with_the_daemons(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["ended"] == "completed"
    assert summary["commands"] == summary["daemon_commands"] > 0
    assert summary["episodes"] == 4 * 12 + 2 * 24 + 6
    assert summary["failed_episodes"] == 0
    assert 0.0 < summary["max_abs_logprob_diff"] < 1e-4
    for key in ("reward_before", "reward_after", "greedy_before", "greedy_after"):
        assert 0.0 <= summary[key] <= 1.0
    assert summary["seconds"] > 0


def test_a_run_leaves_metrics_episodes_a_report_and_a_checkpoint(finished: Path) -> None:
    metrics = list(read_json_lines(finished / "metrics.jsonl"))
    steps = [record for record in metrics if record["kind"] == "step"]
    assert [(record["step"], record["version"]) for record in steps] == [(1, 1), (2, 2)]
    for record in steps:
        assert set(record["phases_s"]) == {"generate", "sandboxes alone", "train", "push", "probe"}
        assert record["latencies_s"]["create"]["p50"] > 0
    names = [record["name"] for record in metrics if record["kind"] == "evaluation"]
    assert names == ["before", "before", "step 1", "after", "after"]
    assert len(list(read_json_lines(finished / "episodes.jsonl"))) == 4 * 12 + 2 * 24 + 6
    assert "</html>" in (finished / "report.html").read_text()
    checkpoint = str(finished / "checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.config.vocab_size >= len(tokenizer)
    assert not (finished / "weights" / "version-2").exists()


def test_an_interrupt_keeps_the_checkpoint_and_leaves_nothing_running(
    daemon: DaemonProcess, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    # In a session of its own, to see which processes it leaves.
    with subprocess.Popen(
        command(daemon, out, "--model", str(finished / "checkpoint"), "--steps", "1000"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                if "step 2/1000" in line:
                    # To the whole group, as a terminal does; the engine must not die of it.
                    os.killpg(run.pid, signal.SIGINT)
                    break
            rest = run.stdout.read()
            assert run.wait() == 130, rest
            with pytest.raises(ProcessLookupError):
                os.killpg(run.pid, 0)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ended"] == "interrupted"
    assert summary["reward_before"] is not None
    assert summary["reward_after"] is None
    AutoModelForCausalLM.from_pretrained(str(out / "checkpoint"))
    assert "interrupted" in (out / "report.html").read_text()
    with Daemon(daemon.socket) as client:
        assert client.info().sandboxes == 0


def test_a_directory_with_a_finished_run_is_not_written_over(
    daemon: DaemonProcess, finished: Path
) -> None:
    done = subprocess.run(
        command(daemon, finished), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "holds a finished run" in done.stderr
