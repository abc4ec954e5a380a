"""A program that reads or writes memory, in a fork and started cold in the same kind of sandbox.

Four kinds, each in a fresh fork and in a fresh cold sandbox, in turn: reading and writing from end
to end, and line by line in an order without pattern. `first_ms` is the pass in which a fork touches
its pages for the first time (a read maps pages of the pool, a write copies them), `after_ms` the
median of those that follow; `slowdown_read` and `slowdown_write` are of the latter, fork over cold,
the worse of both orders. The times are the program's own (bench/touch.c).
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from bench.common import host_facts
from bench.driver import compiled
from bench.node import Node
from sandboxd.client import CommandHandle, Sandbox, Template

PROGRAM = "/usr/local/bin/touch-memory"
KINDS = {"read": "r", "read_scattered": "R", "write": "w", "write_scattered": "W"}
ROOM_BYTES = 128 << 20
# Often enough not to wait long, seldom enough not to disturb what is measured.
LOOK_S = 0.1
DEADLINE_S = 120.0


class Bench:
    """One daemon, and the program in it."""

    def __init__(self, socket: str, mib: int, passes: int) -> None:
        self._socket = socket
        self._argv = (PROGRAM, str(mib), str(passes))
        self._passes = passes
        self._memory_bytes = (mib << 20) + ROOM_BYTES

    @contextlib.contextmanager
    def _started(self) -> Iterator[tuple[Sandbox, CommandHandle, Iterator[bytes]]]:
        """The program once it is ready; and the lines that it writes from then on."""
        # More than one core: a limit that it meets would throttle it at times.
        with Sandbox.create(
            socket=self._socket, memory_bytes=self._memory_bytes, cpu_cores=2
        ) as sandbox:
            sandbox.files.write(PROGRAM, Path(compiled("touch")).read_bytes(), mode=0o755)
            with sandbox.commands.run(self._argv, True, stdin=True) as handle:
                lines = _lines(handle)
                said = next(lines)
                if said != b"ready":
                    raise RuntimeError(f"the program said {said!r}")
                yield sandbox, handle, lines

    def cold(self, kind: str) -> list[float]:
        """Milliseconds of each pass in a sandbox that nothing was forked into."""
        with self._started() as (_, handle, lines):
            handle.send_stdin(kind.encode() + b"\n")
            return [int(next(lines)) / 1e6 for _ in range(self._passes)]

    @contextlib.contextmanager
    def template(self) -> Iterator[tuple[Template, int]]:
        """The program ready to be forked, and the command's number in the forks."""
        with self._started() as (sandbox, handle, _):
            template, exec_id = sandbox.snapshot(), handle.exec_id
        try:
            yield template, exec_id
        finally:
            template.remove()
            template.close()

    def forked(self, template: Template, exec_id: int, kind: str) -> list[float]:
        """Milliseconds of each pass in a fork."""
        with Sandbox.create(template=template, socket=self._socket) as fork:
            fork.commands.send_stdin(exec_id, kind.encode() + b"\n")
            deadline = time.monotonic() + DEADLINE_S
            while (output := fork.commands.output(exec_id)).count(b"\n") < self._passes:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the fork wrote only {output!r}")
                time.sleep(LOOK_S)
            return [int(line) / 1e6 for line in output.splitlines()]


def _lines(handle: CommandHandle) -> Iterator[bytes]:
    rest = b""
    for output in handle:
        *lines, rest = (rest + output.data).split(b"\n")
        yield from lines


def _summary(cold: list[list[float]], forked: list[list[float]], pages: int) -> dict[str, float]:
    """Of all rounds of one kind."""
    cold_first, fork_first = (statistics.median(run[0] for run in runs) for runs in (cold, forked))
    cold_after, fork_after = (
        statistics.median(taken for run in runs for taken in run[1:]) for runs in (cold, forked)
    )
    return {
        "cold_first_ms": round(cold_first, 2),
        "fork_first_ms": round(fork_first, 2),
        "cold_after_ms": round(cold_after, 2),
        "fork_after_ms": round(fork_after, 2),
        "first_touch_us_by_page": round((fork_first - fork_after) * 1000 / pages, 2),
        "slowdown": round(fork_after / cold_after, 3),
    }


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--mib", default=256, show_default=True, help="A power of two.")
@click.option("--passes", default=6, show_default=True, type=click.IntRange(min=2))
def main(socket: str, rounds: int, mib: int, passes: int) -> None:
    bench = Bench(socket, mib, passes)
    kinds: dict[str, dict[str, float]] = {}
    with contextlib.closing(Node(socket)) as node, bench.template() as (template, exec_id):
        cold: dict[str, list[list[float]]] = {name: [] for name in KINDS}
        forked: dict[str, list[list[float]]] = {name: [] for name in KINDS}
        for _ in range(rounds):
            for name, kind in KINDS.items():
                node.wait_at_rest()
                cold[name].append(bench.cold(kind))
                node.wait_at_rest()
                forked[name].append(bench.forked(template, exec_id, kind))
    for name in KINDS:
        kinds[name] = _summary(cold[name], forked[name], mib * 256)
        print(f"{name:16} {kinds[name]}", file=sys.stderr)
    result = {
        "bench": "cow_throughput",
        "slowdown_read": max(kinds[name]["slowdown"] for name in ("read", "read_scattered")),
        "slowdown_write": max(kinds[name]["slowdown"] for name in ("write", "write_scattered")),
        "kinds": kinds,
        "mib": mib,
        "rounds": rounds,
        "host": host_facts(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
