"""Snapshots of one and the same live sandbox, again and again: what each costs stays what it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from tests.kernel.test_daemon_forks import layers_of
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving

SNAPSHOTS = int(os.environ.get("VENUS_REPEATED_SNAPSHOTS", "100"))
WARM_UP = 10
FORKED_EVERY = 15
MEMORY_BYTES, HOT_BYTES = 24 << 20, 1 << 20
# Writes some pages of the hot part, all over it, and one file, whenever it is told to.
WORKER = f"""
import os, time
memory = bytearray({MEMORY_BYTES})
for at in range(0, {MEMORY_BYTES}, 4096):
    memory[at:at + 16] = os.urandom(16)
step = 0
memory[:8] = step.to_bytes(8, "little")
while True:
    os.rename("/tmp/.done", "/tmp/done") if os.path.exists("/tmp/.done") else None
    told = int(open("/tmp/step").read() or 0) if os.path.exists("/tmp/step") else 0
    if told == step:
        time.sleep(0.002)
        continue
    step = told
    memory[:8] = step.to_bytes(8, "little")
    for page in os.urandom(20):
        memory[page * 4096 + 8:page * 4096 + 16] = step.to_bytes(8, "little")
    open("/root/file", "w").write(str(step))
    open("/tmp/.done", "w").write(str(int.from_bytes(memory[:8], "little")))
"""


@pytest.fixture(scope="module")
def plain(
    base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    process = DaemonProcess(
        f"venus-w{os.getpid()}", tmp_path_factory.mktemp("venus"), {"storage_backend": "plain"}
    )
    with serving(process, base_image_tar):
        yield process


def start_worker(sandbox: Sandbox) -> None:
    sandbox.files.write("/root/worker.py", WORKER)
    sandbox.commands.run("python3 /root/worker.py > /dev/null 2>&1 < /dev/null &")
    step(sandbox, 1)


def step(sandbox: Sandbox, number: int) -> None:
    """Lets it write; its memory says which step it was at."""
    sandbox.files.write("/tmp/step.new", str(number))
    sandbox.commands.run("mv /tmp/step.new /tmp/step")
    read = "cat /tmp/done 2> /dev/null"
    eventually(
        lambda: sandbox.commands.run(read, check=False).stdout == str(number),
        f"step {number} is not done",
    )


def mappings_of(sandbox: Sandbox) -> int:
    return int(sandbox.commands.run("wc -l < /proc/$(pgrep -x python3)/maps").stdout)


def counts_of(daemon: DaemonProcess, template: Template) -> dict[str, int]:
    record = json.loads(
        (daemon.state_dir / "templates" / f"{template.template_id}.json").read_text()
    )
    found: dict[str, int] = {**record["counts"], "layers": len(record["layers"])}
    return found


@pytest.mark.timeout(900)
def test_every_snapshot_costs_the_same(plain: DaemonProcess) -> None:
    copied, shapes, forked = [], [], []
    before: Template | None = None
    with Sandbox.create(socket=plain.socket) as sandbox:
        start_worker(sandbox)
        mappings = mappings_of(sandbox)
        for number in range(SNAPSHOTS):
            template = sandbox.snapshot()
            counts = counts_of(plain, template)
            copied.append(counts.get("extent_bytes", 0))
            shapes.append([counts[key] for key in ("layers", "extents", "mappings", "pieces")])
            if before is not None:
                before.remove()
            assert len(layers_of(plain)) == 1
            before = template
            if number % FORKED_EVERY == 0:
                [fork] = template.fork()
                with fork:
                    assert fork.files.read("/root/file") == str(number + 1)
                    forked.append(mappings_of(fork))
                    step(fork, 1000)
            step(sandbox, number + 2)
        assert before is not None
        before.remove()
    assert copied[0] > MEMORY_BYTES
    settled = copied[WARM_UP:]
    assert sorted(settled)[len(settled) // 2] < MEMORY_BYTES / 6
    assert max(settled) < MEMORY_BYTES / 2, "copied whole although little was written"
    early, late = shapes[WARM_UP : SNAPSHOTS // 2], shapes[SNAPSHOTS // 2 :]
    for position in range(4):
        assert max(row[position] for row in late) <= 1.2 * max(row[position] for row in early)
    assert max(forked[1:]) < mappings + 150, forked
    with Daemon(plain.socket) as client:
        assert client.info().pool_bytes == 0
