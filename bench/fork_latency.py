"""From the request for a fork of a warm template to the first byte that `echo` writes in it.

single:      CPython with 512 MiB of random content, 8 threads and at least 150 mappings
tree:        five processes: two shells, two sleeps, one CPython
single_raw, tree_raw: the same requests over a bare socket
bwrap:       bwrap --unshare-all, cold and empty, over the same root filesystem
runc:        runc run, cold and empty
runc_warm:   runc run of the same CPython program until it is ready: what a fork saves (few rounds)
floor:       clone3 with all namespaces, and exec; nothing else

Ending the sandbox is not timed. Of the programs, see bench/warm.py.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from bench import warm
from bench.common import (
    Sample,
    Subject,
    bwrap_command,
    measure,
    report,
    timed_floor,
    timed_program,
    unpacked_image,
)
from bench.first_byte import ECHO, through_client, through_socket
from bench.raw import RawConnection
from bench.runc import Runc
from sandboxd.client import Sandbox, Template

WARM_ROUNDS = 3


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--rounds", default=60, show_default=True)
def main(socket: str, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        rootfs = unpacked_image(place)
        single = stack.enter_context(warm.template(socket, warm.python_command()))
        tree = stack.enter_context(warm.template(socket, warm.tree_command()))
        connection = stack.enter_context(contextlib.closing(RawConnection(socket)))
        runc = Runc(place, rootfs) if Runc.installed() else None
        subjects = [
            Subject(
                "single", through_client(lambda: Sandbox.create(template=single, socket=socket))
            ),
            Subject("tree", through_client(lambda: Sandbox.create(template=tree, socket=socket))),
            Subject(
                "single_raw",
                through_socket(connection, lambda: connection.fork(single.template_id)),
            ),
            Subject(
                "tree_raw", through_socket(connection, lambda: connection.fork(tree.template_id))
            ),
            Subject("bwrap", timed_program("byte", bwrap_command(rootfs, *ECHO))),
            Subject("runc", timed_program("byte", runc.run_command(*ECHO) if runc else None)),
            Subject("floor", timed_floor("create", *ECHO)),
        ]
        samples = measure(subjects, rounds)
        warmed = Subject("runc_warm", _runc_warm(runc))
        if warmed.sample is not None:
            samples |= measure([warmed], WARM_ROUNDS, warm_up=0)
        facts = {name: _facts(each) for name, each in (("single", single), ("tree", tree))}
    report("fork_latency", [*subjects, warmed], samples, {"templates": facts})


def _runc_warm(runc: Runc | None) -> Sample | None:
    if runc is None:
        return None
    # It would wait for ever: the first byte is what is timed.
    program = warm.SINGLE.replace("time.sleep(1000000)", "")
    return timed_program("byte", runc.run_command("python3", "-c", program))


def _facts(template: Template) -> dict[str, int]:
    info = template.info
    return {
        "processes": info.processes,
        "threads": info.threads,
        "mappings": info.mappings,
        "own_bytes": info.own_bytes,
    }


if __name__ == "__main__":
    main()
