"""The C programs of the benchmarks: driver.c, which times, and floor.c, what can be at best."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Literal

from bench.common import BUILD, ROOT, Sample

SOURCES = ROOT / "bench"
PROTOCOL = ROOT / "kernel_helpers" / "include"

Until = Literal["byte", "exit", "answer"]


def compiled(name: str) -> str:
    """The static C program bench/NAME.c, built when a source is newer."""
    binary = BUILD / name
    sources = [SOURCES / f"{name}.c", *SOURCES.glob("*.h"), *PROTOCOL.glob("*.h")]
    newest = max(source.stat().st_mtime for source in sources)
    if not binary.exists() or binary.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-static", f"-I{PROTOCOL}"]
        subprocess.run(["cc", *flags, "-o", binary, sources[0]], check=True)
    return str(binary)


def program_argv(until: Until, times: str, argv: Sequence[str]) -> list[str]:
    """The driver's command line that times a program; `times`: "60", or "5s" for seconds."""
    return [compiled("driver"), "program", until, times, *argv]


def request_argv(until: Until, times: str, socket: str, files: Sequence[str]) -> list[str]:
    """The driver's command line that times requests; `files`: create, exec and delete."""
    return [compiled("driver"), "request", until, times, socket, *files]


def timed_program(until: Until, argv: Sequence[str] | None) -> Sample | None:
    """A program from its spawn on; None for one that is not installed."""
    return None if argv is None else timed(program_argv(until, "1", argv))


def timed_floor(what: str, argv: Sequence[str]) -> Sample:
    """What the kernel alone takes for a program."""
    return timed([compiled("floor"), what, "1", *argv])


def timed(argv: Sequence[str]) -> Sample:
    """A command line that prints one duration."""

    def sample() -> float:
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True)
        [line] = done.stdout.splitlines()
        return duration_ms(line)

    return sample


def duration_ms(line: str) -> float:
    """A line of the driver's output. It raises for a request that was refused."""
    if not line.isdigit():
        raise RuntimeError(f"the daemon refused a request: {line}")
    return int(line) / 1e6
