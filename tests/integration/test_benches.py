"""Every benchmark runs, with the least that it can do, and prints what others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxd.client import Daemon
from tests.support.daemon import DaemonProcess, serving

ROOT = Path(__file__).parents[2]
KSM = Path("/sys/kernel/mm/ksm/run")
PID_MAX = Path("/proc/sys/kernel/pid_max")


@dataclass(frozen=True)
class Run:
    """What a benchmark is asked for, and which of its figures must be there and above zero.

    `rivals`: figures of what may not be installed, which are then null, but never left out.
    """

    options: str
    figures: tuple[str, ...]
    rivals: tuple[str, ...] = ()


RUNS = {
    "create_latency": Run(
        "--rounds 1",
        (
            *("venus_p50_ms", "venus_raw_p50_ms", "venus_run_p50_ms", "venus_cold_p50_ms"),
            "floor_p50_ms",
        ),
        ("bwrap_p50_ms", "runc_p50_ms"),
    ),
    "create_rate": Run(
        "--rounds 1 --seconds 1 --clients 3",
        ("venus_per_s", "pool_hit_p50_ms", "pool_empty_p50_ms"),
        ("bwrap_per_s",),
    ),
    "exec_latency": Run(
        "--rounds 1",
        ("venus_p50_ms", "venus_raw_p50_ms", "floor_p50_ms"),
        ("bwrap_p50_ms", "runc_p50_ms"),
    ),
    "fork_latency": Run(
        "--rounds 1 --seconds 1 --mib 16",
        (
            *("single_p50_ms", "single_client_p50_ms", "single_empty_p50_ms", "floor_p50_ms"),
            *("single_run_p50_ms", "tree_run_p50_ms"),
            *("tree_p50_ms", "tree_client_p50_ms", "tree_empty_p50_ms", "floor_tree_p50_ms"),
        ),
        ("bwrap_p50_ms", "runc_p50_ms", "runc_warm_p50_ms", "criu_p50_ms"),
    ),
    "fork_memory": Run(
        "--forks 2 --unshared 2 --mib 16 --ksm-seconds 2", ("pss_kib",), ("memavailable_kib",)
    ),
    "fork_scale": Run(
        "--rounds 1 --sizes 8,16 --counts 1,3 --mib 8",
        ("live_forks", "slowdown_by_size", "slowdown_by_count"),
    ),
    "cow_throughput": Run(
        "--rounds 1 --mib 1 --passes 2", ("slowdown_read", "slowdown_write")
    ),
}  # fmt: skip
# These take minutes at their least, or load vLLM; their parts have tests of their own
# (tests/unit/test_simulate*.py, tests/rl).
WITHOUT_RUN = {"rollout_sim", "rollout_real", "simulator_validation", "scheduler_overhead"}


@pytest.fixture(scope="module")
def bench_daemon(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon that launches ahead, as production ones do."""
    process = DaemonProcess(
        f"venus-b{os.getpid()}",
        tmp_path_factory.mktemp("bench"),
        {"standing_sandboxes": "4", "standing_window_s": "3"},
    )
    with serving(process, base_image_tar):
        yield process


def result_of(name: str, daemon: DaemonProcess, base_image_tar: Path, *options: str) -> Any:
    environment = {k: v for k, v in os.environ.items() if k != "VENUS_PROGRAMS_TAR"}
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--socket", daemon.socket, *options],
        cwd=ROOT,
        env={**environment, "VENUS_BASE_TAR": str(base_image_tar)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_prints_its_figures(
    name: str, bench_daemon: DaemonProcess, base_image_tar: Path
) -> None:
    machine = [path.read_text() for path in (KSM, PID_MAX) if path.exists()]
    run = RUNS[name]
    result = result_of(name, bench_daemon, base_image_tar, *run.options.split())
    assert result["bench"] == name
    assert result["host"]["cores"] == os.cpu_count()
    assert {figure: result[figure] > 0 for figure in run.figures} == dict.fromkeys(
        run.figures, True
    )
    assert {rival: type(result[rival]) for rival in run.rivals if result[rival] is not None} == (
        {rival: float for rival in run.rivals if result[rival] is not None}
    )
    with Daemon(bench_daemon.socket) as client:
        info = client.info()
        assert (info.sandboxes, info.templates) == (0, 0)
    assert [path.read_text() for path in (KSM, PID_MAX) if path.exists()] == machine


def test_forks_that_the_daemon_does_not_admit_are_left_out_with_the_reason(
    bench_daemon: DaemonProcess, base_image_tar: Path
) -> None:
    options = ["--rounds", "1", "--sizes", "8", "--counts", "1,5000", "--mib", "8"]
    result = result_of("fork_scale", bench_daemon, base_image_tar, *options)
    assert [row["live"] for row in result["by_count"]] == [1]
    assert result["left_out"]["5000 forks"] == "max_sandboxes of the daemon is 2000"


def test_every_benchmark_is_run_here() -> None:
    programs = {
        path.stem for path in ROOT.glob("bench/*.py") if 'name__ == "__main__"' in path.read_text()
    }
    assert programs == RUNS.keys() | WITHOUT_RUN
