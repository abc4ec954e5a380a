"""That the benchmark of our scheduler's cost runs and prints its figures; not what they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.rl, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def test_the_benchmark_prints_what_a_step_costs() -> None:
    options = ["--running", "2", "--slots", "8", "--rounds", "1", "--tokens", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.scheduler_overhead", *options],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bench"] == "scheduler_overhead"
    for figure in ("ours", "stock"):
        assert result[figure]["step_us"] > result[figure]["scheduler_us_per_step"] > 0
    assert isinstance(result["share_of_step"], float) and result["check_ms"] > 0
