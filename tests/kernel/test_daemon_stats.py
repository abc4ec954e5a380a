"""What many sandboxes use, asked for at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from sandboxd.client import AsyncDaemon, Daemon, Lease, Sandbox, SandboxStats
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

RUN = {"run": "stats"}


@pytest.fixture
def boxes(daemon: DaemonProcess) -> Iterator[list[Sandbox]]:
    made = [Sandbox.create(socket=daemon.socket, metadata=RUN, memory_bytes=1 << 26) for _ in "abc"]
    yield made
    for each in made:
        each.kill()


def stats(daemon: DaemonProcess, **wanted: str) -> dict[str, SandboxStats]:
    with Daemon(daemon.socket) as client:
        return {each.id: each for each in client.stats(RUN, **wanted)}


def test_each_is_told_as_it_is_told_alone(daemon: DaemonProcess, boxes: list[Sandbox]) -> None:
    boxes[1].pause()
    found = stats(daemon)
    assert list(found) == [each.sandbox_id for each in boxes]  # the oldest first
    for box in boxes:
        info, told = box.get_info(), found[box.sandbox_id]
        assert (told.state, told.limits, told.created_at) == (
            info.state,
            info.limits,
            info.created_at,
        )
        alone = box.metrics()
        assert told.metrics.pids == alone.pids
        assert 0 < told.metrics.private_bytes <= alone.memory_peak_bytes
    boxes[1].resume()


def test_processor_time_grows_by_what_is_used(daemon: DaemonProcess, boxes: list[Sandbox]) -> None:
    busy, idle = boxes[0].sandbox_id, boxes[1].sandbox_id
    with boxes[0].commands.run("while :; do :; done", True):
        before = stats(daemon)

        def used(sandbox_id: str) -> float:
            return stats(daemon)[sandbox_id].metrics.cpu_s - before[sandbox_id].metrics.cpu_s

        eventually(lambda: used(busy) > 0.2, "it uses no processor time")
        after = stats(daemon)
    assert used(idle) < 0.1
    elapsed_s = after[busy].read_at_s - before[busy].read_at_s
    cores = (after[busy].metrics.cpu_s - before[busy].metrics.cpu_s) / elapsed_s
    assert 0 < cores < (os.cpu_count() or 1) + 1


def test_pages_hide_none(daemon: DaemonProcess, boxes: list[Sandbox]) -> None:
    found, after = [], ""
    while after is not None:
        path = f"/v1/stats?label=run=stats&limit=2&after={after}"
        status, body = request(daemon.socket, "GET", path)
        assert status == 200
        found.append([each["id"] for each in body["sandboxes"]])
        after = body["next"]
    ids = [each.sandbox_id for each in boxes]
    assert found == [ids[:2], ids[2:]]
    assert request(daemon.socket, "GET", "/v1/stats?limit=1001")[0] == 400


async def async_ids(daemon: DaemonProcess, lease: str) -> list[str]:
    async with AsyncDaemon(daemon.socket) as client:
        return [each.id for each in await client.stats(lease=lease)]


def test_those_of_one_lease(daemon: DaemonProcess, boxes: list[Sandbox]) -> None:
    with Lease.create(60, socket=daemon.socket) as lease:
        with Sandbox.create(socket=daemon.socket, metadata=RUN, lease=lease) as mine:
            found = stats(daemon, lease=lease.lease_id)
            assert list(found) == [mine.sandbox_id]
            assert found[mine.sandbox_id].lease == lease.lease_id
            assert asyncio.run(async_ids(daemon, lease.lease_id)) == [mine.sandbox_id]


def test_what_a_fork_shares_is_told(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as original:
        waiting = ["python3", "-c", "print(1, flush=True); input()"]
        with original.commands.run(waiting, True, stdin=True) as handle:
            assert next(iter(handle)).data == b"1\n"
            template = original.snapshot()
    [fork] = template.fork(metadata=RUN)
    told = stats(daemon)[fork.sandbox_id]
    fork.kill()
    assert told.template == template.template_id
    assert told.metrics.shared_bytes == template.info.shared_bytes > 0
    template.remove()
