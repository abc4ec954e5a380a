"""The asynchronous client against a real daemon: the same surface, and what only asyncio has."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from sandboxd.client import (
    AsyncSandbox,
    CommandExitError,
    CommandTimeout,
    DaemonUnavailable,
    ExitReason,
    FileType,
    Output,
)
from sandboxd.errors import NotFound
from tests.support.daemon import DaemonProcess


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 120))


def test_commands(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with await AsyncSandbox.create(envs={"A": "1"}, socket=daemon.socket) as sandbox:
            commands = sandbox.commands
            result = await commands.run("echo $A; echo e >&2")
            assert (result.stdout, result.stderr) == ("1\n", "e\n")
            with pytest.raises(CommandExitError, match="exit code 3"):
                await commands.run("exit 3")
            assert (await commands.run("exit 3", check=False)).exit_code == 3
            with pytest.raises(CommandTimeout):
                await commands.run("sleep 300", timeout=0.2)
            data = os.urandom(2_000_000)
            assert (await commands.run("cat", stdin=data)).stdout_bytes == data
            assert (await commands.run("cat", stdin=io.BytesIO(data))).stdout_bytes == data

            texts: list[str] = []

            async def seen(text: str) -> None:
                texts.append(text)

            await commands.run("echo out; echo err >&2", on_stdout=seen, on_stderr=texts.append)
            assert sorted(texts) == ["err\n", "out\n"]

    run(scenario())


def test_files_and_life(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        sandbox = await AsyncSandbox.create(
            timeout=300, metadata={"kind": "async"}, socket=daemon.socket
        )
        async with sandbox:
            files = sandbox.files
            await files.write("/root/d/t", "text", mode=0o600)
            assert await files.read("/root/d/t") == "text"
            assert await files.read("/root/d/t", "bytes") == b"text"

            async def source() -> AsyncIterator[bytes]:
                for _ in range(10):
                    yield bytes(100_000)

            await files.write("/root/d/b", source())
            stream = await files.read("/root/d/b", "stream")
            assert b"".join([chunk async for chunk in stream]) == bytes(1_000_000)
            assert {entry.name for entry in await files.list("/root/d")} == {"t", "b"}
            assert (await files.stat("/root/d")).type is FileType.DIRECTORY
            await files.make_dir("/root/e/f")
            assert await files.exists("/root/e/f")
            await files.rename("/root/d/b", "/root/e/b")
            await files.chmod("/root/e/b", 0o600)
            await files.chown("/root/e/b", "1000:5")
            entry = await files.stat("/root/e/b", follow=True)
            assert (entry.mode, entry.uid, entry.gid) == (0o600, 1000, 5)
            await files.remove("/root/e", recursive=True)
            assert not await files.exists("/root/e")
            with pytest.raises(NotFound):
                await files.read("/root/e")

            assert (await sandbox.get_info()).labels == {"kind": "async"}
            assert (await sandbox.metrics()).memory_bytes > 0
            await sandbox.set_timeout(None)
            [info] = await AsyncSandbox.list({"kind": "async"}, socket=daemon.socket)
            again = await AsyncSandbox.connect(info.id, socket=daemon.socket)
            assert await again.is_running()
            assert await again.kill()
            await again.close()
            assert not await sandbox.is_running()
            assert not await sandbox.kill()

    run(scenario())


def test_a_handle(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
            handle = await sandbox.commands.run(["cat"], True, stdin=True)
            async with handle:
                await handle.send_stdin(b"ping")
                async for output in handle:
                    assert output == Output("stdout", b"ping")
                    break
                await handle.close_stdin()
                assert (await handle.wait()).exit_code == 0
            handle = await sandbox.commands.run("echo up; sleep 300", True)
            async with handle:
                await handle.kill()
                assert (await handle.wait(check=False)).reason is ExitReason.KILLED

    run(scenario())


def test_32_mib_go_through_cat_both_ways_at_once(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        chunk = os.urandom(1 << 20)
        sent = hashlib.sha256()

        async def source() -> AsyncIterator[bytes]:
            for _ in range(32):
                sent.update(chunk)
                yield chunk

        async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
            result = await sandbox.commands.run("cat", stdin=source())
        assert hashlib.sha256(result.stdout_bytes).digest() == sent.digest()
        assert len(result.stdout_bytes) == 32 << 20

    run(scenario())


def test_a_hundred_commands_at_once(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        sandboxes = await asyncio.gather(
            *(AsyncSandbox.create(socket=daemon.socket) for _ in range(4))
        )
        try:
            # All have started before the first gets its input, so all run at once.
            handles = await asyncio.gather(
                *(
                    sandboxes[number % 4].commands.run(["cat"], True, stdin=True)
                    for number in range(100)
                )
            )

            async def finish(number: int) -> str:
                async with handles[number] as handle:
                    await handle.send_stdin(f"{number}\n".encode(), eof=True)
                    return (await handle.wait()).stdout

            outputs = await asyncio.gather(*(finish(number) for number in range(100)))
            assert outputs == [f"{number}\n" for number in range(100)]
        finally:
            for sandbox in sandboxes:
                async with sandbox:
                    pass

    run(scenario())


def test_cancelling_a_call_ends_the_command(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
            started = asyncio.Event()
            call = asyncio.create_task(
                sandbox.commands.run(
                    "exec 3>/tmp/alive; echo up; sleep 300", on_stdout=lambda _: started.set()
                )
            )
            # A FIFO whose writer is the command: its reader ends when the command is gone.
            await sandbox.commands.run("mkfifo /tmp/alive", check=False)
            reader = asyncio.create_task(sandbox.commands.run("cat /tmp/alive"))
            await started.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await reader
            assert (await sandbox.commands.run("pgrep sleep || true")).stdout == ""
            # The connections of the client are still good.
            assert (await sandbox.commands.run("echo ok")).stdout == "ok\n"

    run(scenario())


def test_an_unreachable_daemon() -> None:
    async def scenario() -> None:
        with pytest.raises(DaemonUnavailable, match=r"/nowhere\.sock"):
            await AsyncSandbox.create(socket="/nowhere.sock")

    run(scenario())
