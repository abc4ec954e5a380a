"""What the benchmarks share: subjects timed in interleaved rounds, host facts, the report.

Rounds are interleaved because this kind of machine drifts: a rival that is measured in another
minute is measured on another machine.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "bench"

WARM_UP_ROUNDS = 3

# Measures once; returns milliseconds.
Sample = Callable[[], float]


@dataclass(frozen=True)
class Subject:
    """What is measured; `sample` is None where it is not installed."""

    name: str
    sample: Sample | None


def at_once() -> None:
    """Nothing has to come to rest before a sample."""


def unpacked_image(tar_path: Path) -> Path:
    """An image as a directory, which nobody writes to, so that the rivals start from the same
    files. It is kept for the next time."""
    stat = tar_path.stat()
    rootfs = BUILD / f"{tar_path.stem}-{stat.st_size}-{stat.st_mtime_ns}"
    if not rootfs.is_dir():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as place, tarfile.open(tar_path) as tar:
            # Device nodes are the rivals' own business: each mounts a /dev of its own.
            members = (member for member in tar if not member.isdev())
            tar.extractall(f"{place}/rootfs", members=members, filter="fully_trusted")
            # Another benchmark may have been faster.
            if not rootfs.is_dir():
                os.rename(f"{place}/rootfs", rootfs)
    return rootfs


def base_tar() -> Path:
    """The tar of the image `base`."""
    return Path(os.environ["VENUS_BASE_TAR"])


def bwrap_command(rootfs: Path, *argv: str) -> list[str] | None:
    """bubblewrap in its strictest common form; None where it is not installed."""
    if shutil.which("bwrap") is None:
        return None
    mounts = ["--ro-bind", str(rootfs), "/", "--proc", "/proc", "--dev", "/dev"]
    return ["bwrap", "--unshare-all", *mounts, "--tmpfs", "/tmp", *argv]


def measure(
    subjects: list[Subject],
    rounds: int,
    warm_up: int | None = None,
    settle: Callable[[], None] = at_once,
) -> dict[str, list[float]]:
    """`rounds` samples of each, one of each in turn, in an order that is drawn for each round, so
    that none always comes after the same. `settle` returns when the machine may be measured."""
    before = min(rounds, WARM_UP_ROUNDS) if warm_up is None else warm_up
    present = [subject for subject in subjects if subject.sample is not None]
    samples: dict[str, list[float]] = {subject.name: [] for subject in present}
    order = random.Random(0)
    for number in range(-before, rounds):
        for subject in order.sample(present, len(present)):
            assert subject.sample is not None
            settle()
            taken = subject.sample()
            if number >= 0:
                samples[subject.name].append(taken)
        _progress(number + 1, rounds)
    return samples


def _progress(done: int, rounds: int) -> None:
    if sys.stderr.isatty() and done > 0:
        print(f"\r{done}/{rounds}", end="\n" if done == rounds else "", file=sys.stderr)


def quantile(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))]


def unwind_on_sigterm() -> None:
    """A benchmark that is stopped puts back what it changed on the machine."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def host_facts() -> dict[str, object]:
    cpu = memory_kib = None
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory_kib = int(line.split()[1])
            break
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_mib": None if memory_kib is None else memory_kib // 1024,
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()),
    }


def report(
    name: str,
    subjects: list[Subject],
    samples: Mapping[str, list[float]],
    further: Mapping[str, object] | None = None,
) -> None:
    """A table for people on standard error; one JSON object as the last line of output."""
    result: dict[str, object] = {"bench": name, **(further or {})}
    shares = (("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    quantiles: dict[str, dict[str, float] | None] = {}
    print(f"{name}, milliseconds:", file=sys.stderr)
    print(f"  {'':12}{'n':>6}" + "".join(f"{n:>9}" for n, _ in shares), file=sys.stderr)
    for subject in subjects:
        taken = samples.get(subject.name)
        if not taken:
            result[f"{subject.name}_p50_ms"] = quantiles[subject.name] = None
            print(f"  {subject.name:12}  not installed", file=sys.stderr)
            continue
        found = {label: round(quantile(taken, share), 3) for label, share in shares}
        result[f"{subject.name}_p50_ms"] = found["p50"]
        quantiles[subject.name] = {**found, "min": round(min(taken), 3), "n": len(taken)}
        cells = "".join(f"{value:9.2f}" for value in found.values())
        print(f"  {subject.name:12}{len(taken):6}{cells}", file=sys.stderr)
    result["quantiles"] = quantiles
    result["host"] = host_facts()
    print(json.dumps(result))
