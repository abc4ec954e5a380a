"""`/bin/true` from the request to its reported end, in a sandbox that stands ready.

venus:     commands.run through the Python client, on a kept connection
venus_raw: the same request, sent by the driver that times the rivals too
bwrap:     bwrap --unshare-all …; it has no exec, so this makes a sandbox each time
runc:      runc exec
floor:     fork, setns into existing namespaces, exec
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import click

from bench.common import Sample, Subject, base_tar, bwrap_command, measure, report, unpacked_image
from bench.driver import timed_floor, timed_program
from bench.requests import Requests
from bench.runc import Runc
from sandboxd.client import Sandbox

TRUE = ("/bin/true",)


def venus(sandbox: Sandbox) -> Sample:
    def sample() -> float:
        begin = time.perf_counter()
        sandbox.commands.run(TRUE)
        return (time.perf_counter() - begin) * 1000

    return sample


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--rounds", default=200, show_default=True)
def main(socket: str, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        rootfs = unpacked_image(base_tar())
        bwrap = bwrap_command(rootfs, *TRUE)
        runc_sample = None
        if Runc.installed():
            runc = Runc(place, rootfs)
            name = stack.enter_context(runc.standing())
            runc_sample = timed_program("exit", runc.exec_command(name, *TRUE))
        sandbox = stack.enter_context(Sandbox.create(socket=socket))
        raw = Requests(place, socket).sample("exit", command=TRUE, sandbox_id=sandbox.sandbox_id)
        subjects = [
            Subject("venus", venus(sandbox)),
            Subject("venus_raw", raw),
            Subject("bwrap", timed_program("exit", bwrap)),
            Subject("runc", runc_sample),
            Subject("floor", timed_floor("exec", TRUE)),
        ]
        samples = measure(subjects, rounds)
    report("exec_latency", subjects, samples)


if __name__ == "__main__":
    main()
