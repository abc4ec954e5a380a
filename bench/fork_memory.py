"""What an idle fork of a warm template costs in memory, its init and kernel objects included.

pss_kib:          proportional set size of all its processes, init too
memavailable_kib: by how much MemAvailable of the machine fell, by fork

Each has run one command before, and nothing stands launched ahead. Other programs of the machine
move MemAvailable, so it is taken over all forks together; `returned_kib` is by how much it rose
again when they were gone. Beside it, by the same rules:

unshared:     the same program started as often in sandboxes of its own
unshared_ksm: the same, with all its memory offered to the kernel's same-page merging, which runs
              for this only: what that saves, how long it takes and how much processor time

The program is the CPython of fork_latency.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from bench import ksm, warm
from bench.common import host_facts, unwind_on_sigterm
from bench.driver import compiled
from bench.memory import available_mib, meminfo_kib, per_sandbox, rollup_kib
from bench.node import Node
from sandboxd.client import Sandbox

BATCH = 10
RESERVE_MIB = 2048
WRAPPER = "/usr/local/bin/mergeable"
# One exec, after which a sandbox is as one in use: init has served a command.
COMMAND = ("/bin/true",)


class Bench:
    """One daemon, one program."""

    def __init__(self, node: Node, program: warm.Program) -> None:
        self._node = node
        self._program = program

    def forks(self, count: int) -> dict[str, Any]:
        """So many forks of the program's template."""
        with (
            warm.template(self._node.socket, self._program) as template,
            contextlib.ExitStack() as made,
        ):
            # What is made once (threads of the daemon, caches) is made before.
            for sandbox in template.fork(2):
                sandbox.commands.run(COMMAND)
                sandbox.kill()
            before, daemon_before = self._at_rest()
            sandboxes: list[Sandbox] = []
            while len(sandboxes) < count:
                for sandbox in template.fork(min(BATCH, count - len(sandboxes))):
                    sandboxes.append(made.enter_context(sandbox))
            figures = self._figures(sandboxes, before)
            during, daemon_during = self._at_rest()
            made.close()
            after, _ = self._at_rest()
            returned = (after["MemAvailable"] - during["MemAvailable"]) / count
            return {
                **figures,
                "returned_kib": round(returned, 1),
                "daemon_kib": round((daemon_during - daemon_before) / count, 1),
                "template": warm.facts(template),
            }

    def unshared(self, count: int) -> dict[str, Any]:
        """The program, started so often."""
        with contextlib.ExitStack() as stack:
            before, _ = self._at_rest()
            sandboxes = self._started(stack, self._program, count)
            return self._figures(sandboxes, before)

    def unshared_ksm(self, count: int, pages: int, limit_s: float) -> dict[str, Any]:
        """The program, started so often, and its equal pages merged."""
        argv = (WRAPPER, *self._program.argv)
        files = {WRAPPER: Path(compiled("mergeable")).read_bytes()}
        program = dataclasses.replace(self._program, argv=argv, files=files)
        with ksm.restored(), contextlib.ExitStack() as stack:
            before, _ = self._at_rest()
            sandboxes = self._started(stack, program, count)
            apart = self._figures(sandboxes, before)
            ksm.switch_on(pages)
            merging = ksm.converge(limit_s)
            together = self._figures(sandboxes, before)
        return {
            **together,
            "unmerged_kib": apart["memavailable_kib"],
            "saving": round(1 - together["memavailable_kib"] / apart["memavailable_kib"], 3),
            "merging": merging,
        }

    def _started(
        self, stack: contextlib.ExitStack, program: warm.Program, count: int
    ) -> list[Sandbox]:
        return [stack.enter_context(warm.running(self._node.socket, program)) for _ in range(count)]

    def _at_rest(self) -> tuple[dict[str, int], int]:
        """The machine's figures and the daemon's, when nothing stands launched ahead."""
        self._node.wait_none_standing()
        self._node.wait_at_rest()
        return meminfo_kib(), rollup_kib(self._node.pid)["Pss"]

    def _figures(self, sandboxes: Sequence[Sandbox], before: dict[str, int]) -> dict[str, Any]:
        for sandbox in sandboxes:
            sandbox.commands.run(COMMAND)
        self._at_rest()
        return per_sandbox(sandboxes, before)


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--forks", default=50, show_default=True)
@click.option("--unshared", default=4, show_default=True, help="Copies; 0: leave them out.")
@click.option("--mib", default=512, show_default=True, help="Content of the program.")
@click.option("--ksm-pages", default=1000, show_default=True, help="That KSM scans every 20 ms.")
@click.option("--ksm-seconds", default=180.0, show_default=True, help="At most, until it has all.")
def main(
    socket: str, forks: int, unshared: int, mib: int, ksm_pages: int, ksm_seconds: float
) -> None:
    unwind_on_sigterm()
    left_out: dict[str, str] = {}
    needed = unshared * (mib + 64) + RESERVE_MIB
    if unshared == 0:
        left_out["unshared"] = left_out["unshared_ksm"] = "not asked for"
    elif available_mib() < needed:
        reason = f"{available_mib()} MiB are available, {needed} would be needed"
        left_out["unshared"] = left_out["unshared_ksm"] = reason
    elif not ksm.available():
        left_out["unshared_ksm"] = f"{ksm.PLACE} is not there, or may not be written"
    with contextlib.closing(Node(socket)) as node:
        bench = Bench(node, warm.python(warm.Origin.best(socket), mib))
        result: dict[str, Any] = {"bench": "fork_memory", "fork": (fork := bench.forks(forks))}
        result |= {name: fork[name] for name in ("pss_kib", "memavailable_kib")}
        apart: dict[str, Callable[[], dict[str, Any]]] = {
            "unshared": lambda: bench.unshared(unshared),
            "unshared_ksm": lambda: bench.unshared_ksm(unshared, ksm_pages, ksm_seconds),
        }
        for name, measured in apart.items():
            result[name] = None if name in left_out else measured()
    result |= {"left_out": left_out, "host": host_facts()}
    _show(result)
    print(json.dumps(result))


def _show(result: dict[str, Any]) -> None:
    print(f"{'fork_memory, KiB each:':24}{'n':>6}{'PSS':>12}{'MemAvailable':>14}", file=sys.stderr)
    for name in ("fork", "unshared", "unshared_ksm"):
        row = result[name]
        if isinstance(row, dict):
            figures = f"{row['sandboxes']:6}{row['pss_kib']:12.0f}{row['memavailable_kib']:14.0f}"
            print(f"  {name:22}{figures}", file=sys.stderr)
        else:
            print(f"  {name:22}  left out", file=sys.stderr)


if __name__ == "__main__":
    main()
