"""The same through the SDK for asyncio: every method once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    NotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.exceptions import SandboxNotRunningException
from e2b.sandbox.filesystem.filesystem import WriteEntry

from tests.e2b.conftest import OTHER_KEY

Body = Callable[[AsyncSandbox], Awaitable[None]]


def in_sandbox(body: Body) -> None:
    """Run it with a fresh sandbox."""

    async def run() -> None:
        async with await AsyncSandbox.create() as sandbox:
            await body(sandbox)

    asyncio.run(run())


def test_lives() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        assert await sandbox.is_running()
        info = await sandbox.get_info()
        assert (info.sandbox_id, info.state) == (sandbox.sandbox_id, SandboxState.RUNNING)
        await sandbox.set_timeout(2000)
        assert (await sandbox.get_info()).end_at > info.end_at
        [metric] = await sandbox.get_metrics()
        assert metric.mem_used > 0
        again = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert (await again.commands.run("echo again")).stdout == "again\n"
        with pytest.raises(NotFoundException):
            await AsyncSandbox.connect(sandbox.sandbox_id, api_key=OTHER_KEY)
        with pytest.raises(AuthenticationException):
            await AsyncSandbox.connect(sandbox.sandbox_id, api_key="e2b_wrong")
        assert await sandbox.pause() is True
        assert await sandbox.pause() is False
        assert (await sandbox.get_info()).state == SandboxState.PAUSED
        await sandbox.connect()
        assert (await sandbox.commands.run("echo awake")).stdout == "awake\n"
        assert await sandbox.kill() is True
        assert await sandbox.kill() is False
        assert not await sandbox.is_running()
        with pytest.raises(SandboxNotRunningException):
            await sandbox.commands.run("true")

    in_sandbox(body)


def test_lists() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        async with await AsyncSandbox.create(metadata={"of": sandbox.sandbox_id}) as other:
            paginator = AsyncSandbox.list(SandboxQuery(metadata={"of": sandbox.sandbox_id}))
            found = await paginator.next_items()
            assert [each.sandbox_id for each in found] == [other.sandbox_id]
            assert not paginator.has_next

    in_sandbox(body)


def test_forks_and_snapshots() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        await sandbox.files.write("kept", "by all")
        [fork] = await sandbox.fork()
        assert isinstance(fork, AsyncSandbox)
        async with fork:
            assert await fork.files.read("kept") == "by all"
        snapshot = await sandbox.create_snapshot()
        try:
            async with await AsyncSandbox.create(snapshot.snapshot_id) as made:
                assert await made.files.read("kept") == "by all"
            paginator = AsyncSandbox.list_snapshots(sandbox_id=sandbox.sandbox_id)
            found = await paginator.next_items()
            assert [each.snapshot_id for each in found] == [snapshot.snapshot_id]
        finally:
            assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True

    in_sandbox(body)


def test_commands() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        out: list[str] = []
        err: list[str] = []
        await sandbox.commands.run(
            "echo one; echo two >&2", on_stdout=out.append, on_stderr=err.append
        )
        assert ("".join(out), "".join(err)) == ("one\n", "two\n")
        with pytest.raises(CommandExitException) as caught:
            await sandbox.commands.run("exit 3")
        assert caught.value.exit_code == 3
        with pytest.raises(TimeoutException):
            await sandbox.commands.run("sleep 1000", timeout=0.5)
        came = asyncio.Event()
        handle = await sandbox.commands.run(
            "cat; sleep 1000", background=True, stdin=True, on_stdout=lambda _: came.set()
        )
        assert handle.pid in [each.pid for each in await sandbox.commands.list()]
        await sandbox.commands.send_stdin(handle.pid, "given")
        await sandbox.commands.close_stdin(handle.pid)
        await came.wait()
        connected = await sandbox.commands.connect(handle.pid)
        assert await sandbox.commands.kill(handle.pid) is True
        with pytest.raises(CommandExitException) as killed:
            await handle.wait()
        assert (killed.value.error, killed.value.stdout) == ("signal: killed", "given")
        with pytest.raises(CommandExitException):
            await connected.wait()
        assert await sandbox.commands.kill(handle.pid) is False

    in_sandbox(body)


def test_many_commands_at_once() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        results = await asyncio.gather(
            *(sandbox.commands.run(f"sleep 0.1; echo {n}") for n in range(30))
        )
        assert [each.stdout for each in results] == [f"{n}\n" for n in range(30)]

    in_sandbox(body)


def test_files() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    async def body(sandbox: AsyncSandbox) -> None:
        files = sandbox.files
        await files.write("a/text", "ü")
        assert await files.read("a/text") == "ü"
        await files.write("a/stream", chunks())
        assert len(await files.read("a/stream", format="bytes")) == 1_000_000
        async with await files.read("a/stream", format="stream") as stream:
            assert sum([len(chunk) async for chunk in stream]) == 1_000_000
        await files.write_files([WriteEntry(path=f"b/{n}", data=str(n)) for n in range(3)])
        assert {each.name for each in await files.list("b")} == {"0", "1", "2"}
        assert (await files.get_info("b")).type is FileType.DIR
        assert (await files.rename("b/0", "c")).path == "/root/c"
        assert await files.exists("c") and not await files.exists("b/0")
        await files.remove("c")
        assert await files.make_dir("d/e") is True
        assert await files.make_dir("d/e") is False
        with pytest.raises(FileNotFoundException):
            await files.read("c")

    in_sandbox(body)


def test_watching() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        events: asyncio.Queue[FilesystemEvent] = asyncio.Queue()
        ended = asyncio.Event()
        await sandbox.files.make_dir("seen")
        watcher = await sandbox.files.watch_dir(
            "seen", on_event=events.put_nowait, on_exit=lambda _: ended.set()
        )
        await sandbox.files.write("/tmp/outside", "")
        await sandbox.commands.run("touch seen/f")
        first = await events.get()
        assert (first.name, first.type) == ("f", FilesystemEventType.CREATE)
        await watcher.stop()
        await ended.wait()
        # A command's slot that each stream holds is free again once its client is gone.
        for _ in range(100):
            watcher = await sandbox.files.watch_dir("seen", on_event=events.put_nowait)
            await watcher.stop()

    in_sandbox(body)


def test_a_watch_ends_with_its_time() -> None:
    async def body(sandbox: AsyncSandbox) -> None:
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        await sandbox.files.watch_dir(
            "/root", on_event=lambda _: None, on_exit=ended.set_result, timeout=0.5
        )
        assert isinstance(await ended, TimeoutException)

    in_sandbox(body)
