"""The same over and over, by several at once: how many a second, and how long each takes."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.common import quantile
from bench.driver import duration_ms


def sustained(argv: Sequence[str], clients: int) -> dict[str, object]:
    """So many drivers at once, each with a command line that goes on for a time.

    `per_s` counts what was done well, over the time until the last driver was done.
    """
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as place:
        outputs = [Path(place, str(number)) for number in range(clients)]
        begin = time.monotonic()
        drivers = []
        for path in outputs:
            with path.open("wb") as output:
                drivers.append(subprocess.Popen(argv, stdout=output))
        ended = [driver.wait() for driver in drivers]
        wall_s = time.monotonic() - begin
        if any(ended):
            raise RuntimeError(f"{' '.join(argv)}: exit codes {ended}")
        lines = [line for path in outputs for line in path.read_text().splitlines()]
    failed = [line for line in lines if not line.isdigit()]
    taken = [duration_ms(line) for line in lines if line.isdigit()]
    return {
        "per_s": round(len(taken) / wall_s, 1),
        "p50_ms": round(quantile(taken, 0.5), 3) if taken else None,
        "p99_ms": round(quantile(taken, 0.99), 3) if taken else None,
        "n": len(taken),
        "failed": len(failed),
        "failures": sorted(set(failed))[:3],
        "clients": clients,
        "seconds": round(wall_s, 1),
    }
