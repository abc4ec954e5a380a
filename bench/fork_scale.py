"""How the time of a fork depends on the size of its template, and on how many forks live.

slowdown_by_size:  p50 of a template's forks over that of the smallest one's, the highest of all
                   sizes; both are measured in turn, so that the machine is the same for both
slowdown_by_count: p50 of a fork beside the most that lived over that of one beside one; the row's
                   `bwrap_p50_ms` tells how the machine was then
live_forks:        how many of them answered a command while all were alive

A fork is timed from its request to the first byte of `echo` in it, and finds a sandbox that was
launched ahead. The program is the CPython of fork_latency, in the background. What the machine or
the daemon has no room for is in `left_out`, with the reason. pid_max and threads-max are raised
where they have to be, and put back.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from bench import warm
from bench.common import (
    Sample,
    Subject,
    base_tar,
    bwrap_command,
    host_facts,
    measure,
    quantile,
    unpacked_image,
    unwind_on_sigterm,
)
from bench.driver import timed_program
from bench.first_byte import ECHO
from bench.kernel_bounds import raised_for
from bench.memory import available_mib, meminfo_kib
from bench.node import Node
from bench.requests import Requests, new
from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import VenusError

RESERVE_MIB = 2048
BATCH = 25
# By fork: what is asked for before it is known, and tasks, init and a command included.
GUESS_MIB = 2
TASKS = warm.THREADS + 4
AT_ONCE = 4


class Bench:
    """One daemon."""

    def __init__(self, node: Node, raw: Requests, origin: warm.Origin, rounds: int) -> None:
        self._node = node
        self._raw = raw
        self._origin = origin
        self._rounds = rounds
        self.left_out: dict[str, str] = {}

    def _fork(self, template: Template) -> Sample:
        create = new(template=template.template_id)
        return self._node.pool_hit(self._raw.sample("byte", create=create, command=ECHO))

    def _program(self, mib: int) -> warm.Program:
        return warm.in_background(warm.python(self._origin, mib))

    def by_size(self, sizes_mib: Sequence[int]) -> list[dict[str, Any]]:
        """A row for each size that fits, the smallest first."""
        smallest, *others = sorted(sizes_mib)
        rows = []
        with warm.template(self._node.socket, self._program(smallest)) as small:
            for mib in others or [smallest]:
                # While it is captured it is there twice.
                if not self._room(f"{mib} MiB", 2 * mib):
                    continue
                with warm.template(self._node.socket, self._program(mib)) as large:
                    subjects = [
                        Subject("small", self._fork(small)),
                        Subject("large", self._fork(large)),
                    ]
                    samples = measure(subjects, self._rounds, settle=self._node.wait_at_rest)
                    p50 = {name: quantile(taken, 0.5) for name, taken in samples.items()}
                    rows.append(
                        {
                            "mib": mib,
                            "p50_ms": round(p50["large"], 3),
                            "smallest_mib": smallest,
                            "smallest_p50_ms": round(p50["small"], 3),
                            "slowdown": round(p50["large"] / p50["small"], 3),
                            "template": warm.facts(large),
                        }
                    )
                    _say(f"{mib} MiB: {rows[-1]['p50_ms']} ms, slowdown {rows[-1]['slowdown']}")
        return rows

    def by_count(
        self, counts: Sequence[int], mib: int, rival: Sample | None
    ) -> list[dict[str, Any]]:
        """A row for each number of live forks that fits, the lowest first."""
        rows: list[dict[str, Any]] = []
        with (
            raised_for(max(counts) * TASKS) as raised,
            warm.template(self._node.socket, self._program(mib)) as template,
        ):
            made: list[Sandbox] = []
            self._node.wait_at_rest()
            before = meminfo_kib()["MemAvailable"]
            by_fork_mib: float = GUESS_MIB
            try:
                for count in sorted(counts):
                    missing = count - len(made)
                    if not self._room(f"{count} forks", int(missing * by_fork_mib)):
                        break
                    if not self._make(template, made, count):
                        break
                    subjects = [Subject("fork", self._fork(template)), Subject("bwrap", rival)]
                    self._node.wait_at_rest()
                    taken_kib = before - meminfo_kib()["MemAvailable"]
                    by_fork_mib = max(1.0, 1.25 * taken_kib / count / 1024)
                    samples = measure(subjects, self._rounds, settle=self._node.wait_at_rest)
                    rows.append(
                        {
                            "live": count,
                            **{
                                f"{n}_p50_ms": round(quantile(s, 0.5), 3)
                                for n, s in samples.items()
                            },
                            "memavailable_kib": round(taken_kib / count, 1),
                            "raised": raised,
                        }
                    )
                    _say(f"{count} live: {rows[-1]['fork_p50_ms']} ms")
                if rows:
                    rows[-1]["answered"] = sum(_each(_answers, made))
            finally:
                _each(Sandbox.kill, made)
        return rows

    def _make(self, template: Template, made: list[Sandbox], count: int) -> bool:
        while len(made) < count:
            try:
                forks = template.fork(min(BATCH, count - len(made)))
            except VenusError as error:
                self.left_out[f"{count} forks"] = f"beside {len(made)}: {error}"
                return False
            made += forks
            for fork in forks:
                fork.commands.run(("/bin/true",))
                fork.close()
        return True

    def _room(self, what: str, mib: int) -> bool:
        available = available_mib()
        if available >= mib + RESERVE_MIB:
            return True
        reason = f"{available} MiB are available; {mib} and {RESERVE_MIB} for others are needed"
        self.left_out[what] = reason
        _say(f"{what} left out: {reason}")
        return False


def _answers(fork: Sandbox) -> bool:
    try:
        return fork.commands.run(ECHO).stdout == "hello\n"
    except VenusError:
        return False
    finally:
        fork.close()


def _each(act: Any, sandboxes: Sequence[Sandbox]) -> list[Any]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(act, sandboxes))


def _say(text: str) -> None:
    print(f"fork_scale: {text}", file=sys.stderr)


def _fitting(counts: Sequence[int], socket: str, left_out: dict[str, str]) -> list[int]:
    """Those that the daemon would admit, one more and those that stand beside them."""
    with contextlib.closing(Daemon(socket)) as daemon:
        limit = int(daemon.info().limits["max_sandboxes"])
    for count in counts:
        if count >= limit:
            left_out[f"{count} forks"] = f"max_sandboxes of the daemon is {limit}"
    return [count for count in counts if count < limit]


def _numbers(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--rounds", default=20, show_default=True, help="Forks timed for each row.")
@click.option("--quick", is_flag=True, help="To 512 MiB, and to 100 forks.")
@click.option("--sizes", default="102,512,2048,8192", show_default=True, callback=_numbers,
              help="Of templates, in MiB.")  # fmt: skip
@click.option("--counts", default="1,10,100,1000,5000", show_default=True, callback=_numbers,
              help="Of live forks.")  # fmt: skip
@click.option("--mib", default=512, show_default=True, help="Of the template with many forks.")
def main(
    socket: str, rounds: int, quick: bool, sizes: list[int], counts: list[int], mib: int
) -> None:
    unwind_on_sigterm()
    if quick:
        sizes = [size for size in sizes if size <= 512]
        counts = [count for count in counts if count <= 100]
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        bwrap = bwrap_command(unpacked_image(base_tar()), *ECHO)
        node = stack.enter_context(contextlib.closing(Node(socket)))
        bench = Bench(node, Requests(place, socket), warm.Origin.best(socket), rounds)
        by_size = bench.by_size(sizes)
        fitting = _fitting(counts, socket, bench.left_out)
        by_count = bench.by_count(fitting, mib, timed_program("byte", bwrap))
    result = {
        "bench": "fork_scale",
        "live_forks": by_count[-1]["answered"] if by_count else 0,
        "slowdown_by_size": max((row["slowdown"] for row in by_size), default=None),
        "slowdown_by_count": (
            round(by_count[-1]["fork_p50_ms"] / by_count[0]["fork_p50_ms"], 3) if by_count else None
        ),
        "by_size": by_size,
        "by_count": by_count,
        "left_out": bench.left_out,
        "host": host_facts(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
