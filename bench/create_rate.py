"""Creates a second, by many clients at once for a time: each creates a sandbox and removes it.

venus_per_s: creates that were done well, each with its removal
failed:      creates that were refused
bwrap_per_s: bwrap --unshare-all, of /bin/true, by as many at once for a shorter time

`pool_hit` and `pool_empty` are single creates while the daemon is at rest: those that find a
sandbox which was launched ahead, and those that find none; `floor` is clone3 with all namespaces,
and exec. `sustained` has all of the minute, `found_standing` too: under load the daemon launches
ahead what it can.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import click

from bench.common import (
    Subject,
    base_tar,
    bwrap_command,
    host_facts,
    measure,
    quantile,
    unpacked_image,
)
from bench.driver import program_argv, timed_floor
from bench.node import Node
from bench.requests import Requests, new
from bench.sustained import sustained

TRUE = ("/bin/true",)
RIVALS_SHARE = 0.1  # of the time


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--clients", default=32, show_default=True)
@click.option("--rounds", default=40, show_default=True, help="Of the single creates.")
def main(socket: str, seconds: float, clients: int, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        bwrap = bwrap_command(unpacked_image(base_tar()), *TRUE)
        node = stack.enter_context(contextlib.closing(Node(socket)))
        raw = Requests(place, socket)
        subjects = [
            Subject("pool_hit", node.pool_hit(raw.sample("answer", create=new()))),
            Subject("pool_empty", raw.sample("answer", create=new(ahead=False))),
            Subject("floor", timed_floor("create", ("/bin/echo", "hello"))),
        ]
        single = measure(subjects, rounds, settle=node.wait_at_rest)
        taken_before = node.taken()
        venus = sustained(raw.argv("answer", f"{seconds}s", create=new()), clients)
        node.wait_at_rest()
        taken = node.taken() - taken_before
        rival_s = max(1.0, RIVALS_SHARE * seconds)
        rival = None
        if bwrap is not None:
            rival = sustained(program_argv("exit", f"{rival_s}s", bwrap), clients)
    result = {
        "bench": "create_rate",
        "venus_per_s": venus["per_s"],
        "failed": venus["failed"],
        "bwrap_per_s": rival and rival["per_s"],
        "sustained": {**venus, "found_standing": taken},
        "bwrap": rival,
        **{f"{name}_p50_ms": round(quantile(found, 0.5), 3) for name, found in single.items()},
        "host": host_facts(),
    }
    print(
        f"create_rate: {venus['per_s']} a second by {clients} clients, {venus['failed']} failed; "
        f"bwrap {result['bwrap_per_s']} a second",
        file=sys.stderr,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
