"""What happens to sandboxes, as a client of the daemon can follow it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from sandboxd.client import AsyncDaemon, AsyncSandbox, Daemon, Sandbox, SandboxEvent, VenusError
from tests.kernel.test_daemon_recovery import restart
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import UnixConnection

MIB = 1 << 20


def until(events: Iterator[SandboxEvent], kind: str) -> list[SandboxEvent]:
    found = []
    for event in events:
        found.append(event)
        if event.type == kind:
            return found
    raise AssertionError(f"the events ended without {kind}: {found}")


def test_the_life_of_a_sandbox(daemon: DaemonProcess) -> None:
    labels = {"run": "events"}
    with Daemon(daemon.socket) as client, client.events(metadata=labels) as events:
        with Sandbox.create(socket=daemon.socket):  # another one
            pass
        with Sandbox.create(metadata=labels, socket=daemon.socket) as sandbox:
            sandbox.commands.run("exit 3", check=False)
            sandbox.pause()
            sandbox.resume()
            [fork] = sandbox.fork()
            with fork:
                template = sandbox.snapshot()
        found = until(events, "killed")
        template.remove()
    assert {each.sandbox for each in found} == {sandbox.sandbox_id}
    assert [each.type for each in found] == [
        "created",
        "started",
        "exec",
        "exited",
        "paused",
        "resumed",
        "forked",
        "snapshot",
        "killed",
    ]
    assert [each.seq for each in found] == sorted({each.seq for each in found})
    details = {each.type: each.details for each in found}
    assert details["created"] == {"image": "base", "template": None}
    assert details["exited"]["exit_code"] == 3
    assert details["exited"]["exec_id"] == details["exec"]["exec_id"]
    assert details["forked"] == {"into": [fork.sandbox_id]}
    assert details["snapshot"] == {"template": template.template_id}
    assert details["killed"] == {"reason": "destroyed"}
    assert found[0].labels == labels


def test_out_of_memory_is_told(daemon: DaemonProcess) -> None:
    with (
        Daemon(daemon.socket) as client,
        Sandbox.create(memory_bytes=64 * MIB, socket=daemon.socket) as sandbox,
        client.events(sandbox_id=sandbox.sandbox_id) as events,
    ):
        result = sandbox.commands.run("tail /dev/zero", check=False)
        assert result.reason == "oom"
        found = until(events, "exited")
    assert [each.type for each in found] == ["exec", "oom", "exited"]
    assert found[1].details == {"exec_id": found[0].details["exec_id"]}


def test_why_it_ended(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket) as client, client.events() as events:
        with Sandbox.create(timeout=0.05, socket=daemon.socket):
            assert until(events, "killed")[-1].details == {"reason": "expired"}


def test_going_on_after_a_restart(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket) as client, Sandbox.create(socket=daemon.socket) as sandbox:
        with client.events(after=0, sandbox_id=sandbox.sandbox_id, wait=False) as events:
            last = list(events)[-1]
        with client.events(after=last.seq, sandbox_id=sandbox.sandbox_id, wait=False) as events:
            assert list(events) == []
        restart(daemon)
        with client.events(after=last.seq, sandbox_id=sandbox.sandbox_id, wait=False) as events:
            missed, *found = events
        assert (missed.type, missed.details) == ("missed", {"count": None})
        assert [each.type for each in found] == ["adopted"]


def test_a_reader_that_does_not_read_holds_up_nobody(daemon: DaemonProcess) -> None:
    connection = UnixConnection(daemon.socket)
    connection.request("GET", "/v1/events")
    with contextlib.closing(connection):
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with Sandbox.create(socket=daemon.socket) as sandbox:
            for _ in range(50):
                sandbox.commands.run("true")


def test_a_stream_ends_with_the_daemon(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket) as client, client.events() as events:
        daemon.stop()
        with contextlib.suppress(VenusError):
            list(events)
    daemon.start()


def test_the_same_with_asyncio(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with AsyncDaemon(daemon.socket) as client, client.events() as events:
            async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
                pass
            async for event in events:
                if event.type == "killed":
                    assert event.sandbox == sandbox.sandbox_id
                    break

    asyncio.run(asyncio.wait_for(scenario(), 60))
