"""One request that makes a sandbox and runs a command in it, through both clients."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sandboxd.client import AsyncSandbox, AsyncTemplate, Daemon, ExitReason, Sandbox, Template
from sandboxd.client._command_calls import start_sandbox
from sandboxd.client._http import encode_request
from sandboxd.errors import (
    ExecFailed,
    ImageNotFound,
    InvalidRequest,
    NotFound,
    SandboxGone,
    TooLarge,
    VenusError,
)
from tests.support.daemon import DaemonProcess

MIB = 1 << 20
DEADLINE_S = 30.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 120))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come to be"
        time.sleep(0.01)


def ids(daemon: DaemonProcess) -> set[str]:
    return {info.id for info in Sandbox.list(socket=daemon.socket)}


def counters(daemon: DaemonProcess) -> dict[str, int]:
    with Daemon(daemon.socket) as client:
        return client.info().counters


@pytest.fixture
def unchanged(daemon: DaemonProcess) -> Iterator[None]:
    """The test leaves no sandbox behind."""
    before = ids(daemon)
    yield
    wait_until(lambda: ids(daemon) == before)


@pytest.fixture
def template(daemon: DaemonProcess) -> Iterator[Template]:
    with Sandbox.create(socket=daemon.socket, envs={"A": "1"}, cwd="/srv") as sandbox:
        sandbox.commands.run("mkdir -p /srv; echo of the template > /srv/f", cwd="/")
        made = sandbox.snapshot()
    yield made
    made.remove()
    made.close()


def test_a_sandbox_and_the_output_of_its_command(daemon: DaemonProcess, unchanged: None) -> None:
    sandbox, command = Sandbox.start(
        "echo $A; pwd; id -u; hostname; echo e >&2; exit 3",
        memory_bytes=200 * MIB,
        envs={"A": "b"},
        cwd="/tmp",
        user="1000",
        hostname="box",
        timeout=300,
        metadata={"run": "7"},
        socket=daemon.socket,
    )
    with sandbox, command:
        result = command.wait(check=False)
        assert (result.stdout, result.stderr) == ("b\n/tmp\n1000\nbox\n", "e\n")
        assert (result.exit_code, result.reason) == (3, ExitReason.EXITED)
        # What the answer told of the sandbox is what create would have told, and it lives on.
        assert sandbox.info.limits.memory_bytes == 200 * MIB
        told, asked = sandbox.info, sandbox.get_info()
        assert told.expires_at == pytest.approx(asked.expires_at, abs=1)
        assert dataclasses.replace(told, expires_at=asked.expires_at) == asked
        assert asked.metadata == {"run": "7"}
        assert sandbox.commands.run("echo $A").stdout == "b\n"


def test_a_program_and_a_conversation_with_it(daemon: DaemonProcess, unchanged: None) -> None:
    sandbox, command = Sandbox.start(["cat"], stdin=True, socket=daemon.socket)
    with sandbox, command:
        output = iter(command)
        command.send_stdin("one\n")
        assert next(output).data == b"one\n"
        command.close_stdin()
        assert list(output) == []
        assert command.exit.exit_code == 0


def test_a_fork_of_a_template(daemon: DaemonProcess, template: Template, unchanged: None) -> None:
    before = counters(daemon)
    sandbox, command = Sandbox.start("cat f; echo $A", template=template, socket=daemon.socket)
    with sandbox, command:
        assert command.wait().stdout == "of the template\n1\n"
        assert sandbox.info.template == template.template_id
    after = counters(daemon)
    for counter in ("sandboxes_created", "sandboxes_forked", "execs_started"):
        assert after[counter] - before[counter] == 1, counter


def test_with_remove_the_sandbox_is_gone_when_its_command_has_ended(
    daemon: DaemonProcess, unchanged: None
) -> None:
    sandbox, command = Sandbox.start(
        "read x; echo $x", remove=True, stdin=True, socket=daemon.socket
    )
    assert sandbox.is_running()
    command.send_stdin("out\n")
    assert command.wait().stdout == "out\n"
    assert not sandbox.is_running()
    with pytest.raises((NotFound, SandboxGone)):
        sandbox.commands.run("true")
    sandbox.close()


@pytest.mark.parametrize("remove", [True, False])
def test_a_command_that_is_left_ends_and_with_remove_its_sandbox(
    daemon: DaemonProcess, unchanged: None, remove: bool
) -> None:
    sandbox, command = Sandbox.start("echo up; sleep 1000", remove=remove, socket=daemon.socket)
    next(iter(command))
    command.disconnect()
    if remove:
        wait_until(lambda: sandbox.sandbox_id not in ids(daemon))
    else:
        wait_until(lambda: sandbox.metrics().execs_running == 0)
        assert sandbox.kill()
    sandbox.close()


def test_a_time_limit_and_a_bound_of_output(daemon: DaemonProcess, unchanged: None) -> None:
    sandbox, command = Sandbox.start(
        "head -c 100000 /dev/zero; sleep 1000",
        command_timeout=1,
        max_output_bytes=10,
        remove=True,
        socket=daemon.socket,
    )
    with sandbox, command:
        result = command.wait(check=False)
    assert (result.reason, result.stdout_bytes, result.truncated) == (
        ExitReason.TIMEOUT,
        bytes(10),
        True,
    )


@pytest.mark.parametrize(
    ("command", "options", "error", "named"),
    [
        (["/no/such/program"], {}, ExecFailed, "ENOENT"),
        ("true", {"user": "nobody-here"}, ExecFailed, "user"),
        ("true", {"cwd": "/no/such"}, ExecFailed, "cwd"),
        ("true", {"image": "nope"}, ImageNotFound, "nope"),
        ("true", {"template": "tp-0000000000000000"}, NotFound, "tp-0000000000000000"),
        ("true", {"memory_bytes": 1 << 60}, InvalidRequest, "memory_bytes"),
        ("true", {"hostname": "-"}, InvalidRequest, "sandbox.hostname"),
        ("true", {"command_timeout": 1e9}, InvalidRequest, "timeout_s"),
    ],
)
def test_what_fails_says_why_and_leaves_nothing(
    daemon: DaemonProcess, command: Any, options: dict[str, Any], error: type, named: str
) -> None:
    before = ids(daemon)
    with pytest.raises(VenusError) as raised:
        Sandbox.start(command, socket=daemon.socket, **options)
    assert type(raised.value) is error
    assert named in str(raised.value)
    assert ids(daemon) == before


def test_a_sandbox_that_cannot_be_told_of_in_one_frame(daemon: DaemonProcess) -> None:
    # Each of these characters is six in JSON.
    large = "\1" * (63 << 10)
    labels = {f"{number}": "\1" * 1024 for number in range(64)}
    with Sandbox.create(socket=daemon.socket, envs={"one": large}) as sandbox:
        template = sandbox.snapshot()
    before = ids(daemon)
    with pytest.raises(TooLarge, match="env and labels"):
        Sandbox.start(
            "true",
            template=template,
            envs={"two": large},
            metadata=labels,
            socket=daemon.socket,
        )
    assert ids(daemon) == before
    assert template.remove()
    template.close()


def test_a_client_that_goes_before_it_is_told_leaves_nothing(
    daemon: DaemonProcess, unchanged: None
) -> None:
    before = counters(daemon)["sandboxes_created"]
    call = start_sandbox("sleep 1000", {})
    # The daemon finds the request and the end of its connection together.
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(daemon.socket)
            connection.sendall(encode_request(call, streamed=False))
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    wait_until(lambda: counters(daemon)["sandboxes_created"] == before + 1)


def test_asyncio(daemon: DaemonProcess, template: Template, unchanged: None) -> None:
    async def scenario() -> None:
        at = daemon.socket
        sandbox, command = await AsyncSandbox.start("cat; exit 3", stdin=True, socket=at)
        async with sandbox, command:
            await command.send_stdin("in", eof=True)
            result = await command.wait(check=False)
            assert (result.stdout, result.exit_code) == ("in", 3)
            assert await sandbox.is_running()

        origin = await AsyncTemplate.get(template.template_id, socket=at)
        sandbox, command = await AsyncSandbox.start(
            "cat f", template=origin, remove=True, socket=at
        )
        async with sandbox, command:
            assert (await command.wait()).stdout == "of the template\n"
            assert not await sandbox.is_running()
        await origin.close()

        with pytest.raises(ExecFailed, match="ENOENT"):
            await AsyncSandbox.start(["/no/such/program"], socket=at)

    run(scenario())
