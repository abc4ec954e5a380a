"""From the request for a fork of a warm template to the first byte that `echo` writes in it.

single:       CPython with numpy, 512 MiB of random content, 8 threads, at least 150 mappings
tree:         five processes: two shells, two sleeps, one CPython
single_run, tree_run: fork and command in one request
single_client, tree_client: the same requests through the Python client
single_empty, tree_empty: the fork finds no sandbox that was launched ahead; all others do
bwrap:        bwrap --unshare-all, cold and empty, over the same root filesystem
runc:         runc run, cold and empty
runc_warm:    runc run of the same CPython program until it is ready: what a fork saves (few rounds)
criu:         criu restore of the same program until it runs, outside of any sandbox (few rounds)
floor, floor_tree: the plan's system calls in a sandbox that stands ready, and echo; no daemon
              (`floor_restore_ms` is the plan's part of that)

All but the `_client` ones are timed by the same small C program. Ending the sandbox is not timed,
and each sample waits until the daemon is at rest. `sustained` is without any rest: forks, each with
its echo and its end, one after the other for some seconds, by one client and by several;
`found_standing` of them found a sandbox that was launched ahead. Of the programs, see
bench/warm.py.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from bench import criu, warm
from bench.common import (
    Sample,
    Subject,
    bwrap_command,
    measure,
    quantile,
    report,
    unpacked_image,
)
from bench.driver import timed_program
from bench.first_byte import ECHO, through_client
from bench.node import Node
from bench.ready import PlanFloor
from bench.requests import Requests, new, run_in_new
from bench.runc import Runc
from bench.sustained import sustained
from sandboxd.client import Sandbox, Template

WARM_ROUNDS = 3
CLIENTS = 4


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--rounds", default=60, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="Of each row of `sustained`.")
@click.option("--mib", default=512, show_default=True, help="Content of the single program.")
def main(socket: str, rounds: int, seconds: float, mib: int) -> None:
    origin = warm.Origin.best(socket)
    programs = {"single": warm.python(origin, mib), "tree": warm.tree(origin)}
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        rootfs = unpacked_image(origin.tar)
        node = stack.enter_context(contextlib.closing(Node(socket)))
        raw = Requests(place, socket)
        runc = Runc(place, rootfs) if Runc.installed() else None
        templates = {
            name: stack.enter_context(warm.template(socket, program))
            for name, program in programs.items()
        }
        floors = {
            name: PlanFloor(place, rootfs, program.argv, program.memory_bytes)
            for name, program in programs.items()
        }
        subjects = [
            *(each for pair in templates.items() for each in _forks(node, raw, *pair)),
            Subject("bwrap", timed_program("byte", bwrap_command(rootfs, *ECHO))),
            Subject("runc", timed_program("byte", runc.run_command(*ECHO) if runc else None)),
            Subject("floor", floors["single"].sample),
            Subject("floor_tree", floors["tree"].sample),
        ]
        samples = measure(subjects, rounds, settle=node.wait_at_rest)
        warmed = [
            Subject("runc_warm", _runc_warm(runc, origin, mib)),
            Subject(
                "criu",
                stack.enter_context(criu.restored(place, mib)) if criu.usable() else None,
            ),
        ]
        samples |= measure(warmed, WARM_ROUNDS, warm_up=0)
        further = {
            "templates": {name: warm.facts(each) for name, each in templates.items()},
            "floor_restore_ms": {
                name: round(quantile(floor.restored_ms, 0.5), 3) for name, floor in floors.items()
            },
            "sustained": {
                name: [_sustained(node, raw, each, seconds, clients) for clients in (1, CLIENTS)]
                for name, each in templates.items()
            },
        }
    report("fork_latency", [*subjects, *warmed], samples, further)


def _forks(node: Node, raw: Requests, name: str, template: Template) -> list[Subject]:
    origin = template.template_id
    client = through_client(lambda: Sandbox.create(template=template, socket=node.socket))
    return [
        Subject(name, node.pool_hit(raw.sample("byte", create=new(template=origin), command=ECHO))),
        Subject(
            f"{name}_run",
            node.pool_hit(raw.sample("byte", run=run_in_new(ECHO, template=origin))),
        ),
        Subject(f"{name}_client", node.pool_hit(client)),
        Subject(
            f"{name}_empty",
            raw.sample("byte", create=new(template=origin, ahead=False), command=ECHO),
        ),
    ]


def _sustained(
    node: Node, raw: Requests, template: Template, seconds: float, clients: int
) -> dict[str, object]:
    create = new(template=template.template_id)
    before = node.taken()
    row = sustained(raw.argv("byte", f"{seconds}s", create=create, command=ECHO), clients)
    return {**row, "found_standing": node.taken() - before}


def _runc_warm(runc: Runc | None, origin: warm.Origin, mib: int) -> Sample | None:
    if runc is None:
        return None
    # It would wait for ever: the first byte is what is timed.
    return timed_program("byte", runc.run_command(*warm.python(origin, mib, end="").argv))


if __name__ == "__main__":
    main()
