"""What an idle fork of a warm template costs in memory, its init and kernel objects included.

pss_kib:          proportional set size of all its processes, init too, after one exec in it
memavailable_kib: by how much MemAvailable of the machine fell, by fork

The program is the same CPython as in fork_latency. Other programs of the machine move MemAvailable,
so it is taken over all forks together.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import click
import psutil

from bench import warm
from bench.common import host_facts
from sandboxd.client import Sandbox

BATCH = 10
SETTLE_S = 1.0


def memavailable_kib() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(re.findall(r"MemAvailable:\s+(\d+)", text)[0])


def pss_kib(sandbox: Sandbox) -> int:
    """Of init and all its descendants."""
    assert sandbox.info.init_pid is not None
    init = psutil.Process(sandbox.info.init_pid)
    total = 0
    for process in (init, *init.children(recursive=True)):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        total += int(re.findall(r"^Pss:\s+(\d+)", rollup, re.M)[0])
    return total


@click.command(help=__doc__)
@click.option("--socket", required=True, help="The daemon's socket.")
@click.option("--forks", default=50, show_default=True)
def main(socket: str, forks: int) -> None:
    with warm.template(socket, warm.python_command()) as template:
        # What is made once (threads of the daemon, caches) is made before.
        for sandbox in template.fork(2):
            sandbox.commands.run(["/bin/true"])
            sandbox.kill()
        time.sleep(SETTLE_S)
        before = memavailable_kib()
        made: list[Sandbox] = []
        try:
            while len(made) < forks:
                made += template.fork(min(BATCH, forks - len(made)))
            for sandbox in made:
                sandbox.commands.run(["/bin/true"])
                sandbox.close()
            time.sleep(SETTLE_S)
            taken = (before - memavailable_kib()) / forks
            pss = sorted(pss_kib(sandbox) for sandbox in made)
        finally:
            for sandbox in made:
                sandbox.kill()
    print(
        json.dumps(
            {
                "bench": "fork_memory",
                "forks": forks,
                "pss_kib": pss[len(pss) // 2],
                "memavailable_kib": round(taken, 1),
                "template_kib": template.info.own_bytes // 1024,
                "host": host_facts(),
            }
        )
    )


if __name__ == "__main__":
    main()
