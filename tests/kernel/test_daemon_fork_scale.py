"""A thousand forks of one template at once: each answers; then they are gone without a trace."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from sandboxd.client import Daemon, Sandbox, Template
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess
from tests.support.footprint import footprint, meminfo_kib, namespaces, template_footprint

FORKS = int(os.environ.get("VENUS_FORK_COUNT", "1000"))
TEMPLATE_BYTES = 512 << 20
BATCH, CLIENTS = 50, 4
# Each line of its input names a page; it tells the checksum of that and writes to it.
PROGRAM = f"""
import os, sys, zlib
memory = bytearray({TEMPLATE_BYTES})
for start in range(0, len(memory), 1 << 20):
    memory[start:start + (1 << 20)] = os.urandom(1 << 20)
print("ready", flush=True)
for line in sys.stdin:
    start = int(line) * 4096
    page = memory[start:start + 4096]
    memory[start:start + 4096] = bytes(4096)
    print(int(line), zlib.crc32(page), flush=True)
"""


def at_once(call: Callable[[Sandbox], None], sandboxes: Sequence[Sandbox]) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in pool.map(call, sandboxes):
            pass


def make_template(daemon: DaemonProcess) -> tuple[Template, int, dict[int, int]]:
    """The template, the command in it, and the checksums of some of its pages, told by a fork."""
    with Sandbox.create(socket=daemon.socket, memory_bytes=2 * TEMPLATE_BYTES) as sandbox:
        handle = sandbox.commands.run(["python3", "-c", PROGRAM], True, stdin=True)
        assert next(iter(handle)).data == b"ready\n"
        template = sandbox.snapshot()
    [witness] = template.fork()
    with witness:
        pages = [number * (TEMPLATE_BYTES // 4096 // 16) for number in range(16)]
        lines = "".join(f"{page}\n" for page in pages).encode()
        witness.commands.send_stdin(handle.exec_id, lines)
        eventually(lambda: len(told_by(witness, handle.exec_id)) == 16, "the witness is silent")
        return template, handle.exec_id, told_by(witness, handle.exec_id)


def told_by(sandbox: Sandbox, exec_id: int) -> dict[int, int]:
    lines = sandbox.commands.output(exec_id).decode().splitlines(keepends=True)
    return {int(page): int(crc) for page, crc in map(str.split, lines) if crc}


def alive(daemon: DaemonProcess) -> int:
    with Daemon(daemon.socket) as client:
        return client.info().sandboxes


def everything(daemon: DaemonProcess) -> dict[str, object]:
    return {**footprint(daemon), **template_footprint(daemon)}


@pytest.mark.timeout(600)
def test_a_thousand_forks_answer_and_leave_nothing(daemon: DaemonProcess) -> None:
    template, exec_id, checksums = make_template(daemon)
    for warm_up in template.fork(8):  # threads and caches that are made once are made now
        warm_up.kill()
        warm_up.close()
    gc.collect()
    before, namespaces_before = everything(daemon), namespaces()
    daemon_process = psutil.Process(daemon.pid)
    rss_before = daemon_process.memory_info().rss
    free_before = meminfo_kib("MemAvailable")
    forks: list[Sandbox] = []
    try:
        while len(forks) < FORKS:
            made = template.fork(min(BATCH, FORKS - len(forks)))
            forks += made
            for each in made:
                each.close()
        taken_kib = (free_before - meminfo_kib("MemAvailable")) / FORKS
        assert taken_kib < 4096, "they do not share their template's memory"
        assert len({each.info.generation for each in forks}) == FORKS
        assert alive(daemon) == FORKS
        assert daemon_process.num_threads() < 40
        # Init's pidfd, the link to it, and the three pipes of the command.
        assert daemon_process.num_fds() <= 5 * FORKS + 64

        def check(fork: Sandbox) -> None:
            assert fork.commands.run("cat /run/venus/generation").stdout.strip() == (
                fork.info.generation
            )
            # The program that came with it is warm, and what one writes no other sees.
            page = list(checksums)[forks_index[fork.sandbox_id] % len(checksums)]
            fork.commands.send_stdin(exec_id, f"{page}\n{page}\n".encode())
            eventually(lambda: len(fork.commands.output(exec_id).splitlines()) == 2, "it is silent")
            first, second = fork.commands.output(exec_id).decode().splitlines()
            assert first == f"{page} {checksums[page]}"
            assert second == f"{page} {zlib.crc32(bytes(4096))}"
            fork.close()

        forks_index = {each.sandbox_id: number for number, each in enumerate(forks)}
        at_once(check, forks)
        assert alive(daemon) == FORKS
    finally:

        def end(fork: Sandbox) -> None:
            fork.kill()
            fork.close()

        at_once(end, forks)
    eventually(lambda: everything(daemon) == before, f"left: {everything(daemon)}, not {before}")
    risen = namespaces() - namespaces_before
    assert max(risen.values(), default=0) < max(5, FORKS // 20), risen
    assert daemon_process.memory_info().rss - rss_before < 32 << 20
    assert template.remove()
    template.close()
    assert template_footprint(daemon)["pool bytes"] == 0
