"""From the request for a new sandbox to the first byte that `echo` writes in it.

venus:      create, then exec, through the Python client; the create finds a sandbox that was
            launched ahead
venus_raw:  the same two requests, sent by the driver that times the rivals too
venus_run:  one request for both, sent by the driver; it finds one too
venus_cold: as venus, but the create finds none
cold_raw:   as venus_raw, but the create finds none
bwrap:      bwrap --unshare-all, over the same root filesystem
runc:       runc run, over the same root filesystem
floor:      clone3 with all namespaces, and exec; nothing else

Ending the sandbox is not timed, and each sample waits until the daemon is at rest.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from bench.common import Subject, base_tar, bwrap_command, measure, report, unpacked_image
from bench.driver import timed_floor, timed_program
from bench.first_byte import ECHO, through_client
from bench.node import Node
from bench.requests import Requests, new, run_in_new
from bench.runc import Runc
from sandboxd.client import Sandbox


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--rounds", default=60, show_default=True)
def main(socket: str, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        rootfs = unpacked_image(base_tar())
        bwrap = bwrap_command(rootfs, *ECHO)
        runc = Runc(place, rootfs).run_command(*ECHO) if Runc.installed() else None
        node = stack.enter_context(contextlib.closing(Node(socket)))
        raw = Requests(place, socket)

        def create(hostname: str | None = None) -> Sandbox:
            return Sandbox.create(socket=socket, hostname=hostname)

        subjects = [
            Subject("venus", node.pool_hit(through_client(create))),
            Subject("venus_raw", node.pool_hit(raw.sample("byte", create=new(), command=ECHO))),
            Subject("venus_run", node.pool_hit(raw.sample("byte", run=run_in_new(ECHO)))),
            # With a name of its own it is never one that was launched ahead.
            Subject("venus_cold", through_client(lambda: create("cold"))),
            Subject("cold_raw", raw.sample("byte", create=new(ahead=False), command=ECHO)),
            Subject("bwrap", timed_program("byte", bwrap)),
            Subject("runc", timed_program("byte", runc)),
            Subject("floor", timed_floor("create", ECHO)),
        ]
        samples = measure(subjects, rounds, settle=node.wait_at_rest)
    report("create_latency", subjects, samples)


if __name__ == "__main__":
    main()
