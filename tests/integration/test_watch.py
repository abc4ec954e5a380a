"""Watching a directory of a sandbox, against a real daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sandboxd.client import AsyncSandbox, Sandbox, WatchEvent, WatchKind
from sandboxd.errors import InvalidRequest, NotFound, SandboxGone, Unauthorized
from tests.support.daemon import DaemonProcess

DONE = "/root/w/done"


def told(events: Iterator[WatchEvent], until: str = DONE) -> list[tuple[str, str, str | None]]:
    """What is told before the file `until` comes, each repetition once."""
    found: list[tuple[str, str, str | None]] = []
    for event in events:
        if event.path == until and event.type is WatchKind.CREATE:
            return found
        row = (event.type.value, event.path.removeprefix("/root/w"), event.target)
        if row not in found:
            found.append(row)
    raise AssertionError(f"the events ended after {found}")


def test_each_kind_of_event(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("/root/w/d")
    with sandbox.files.watch("/root/w") as events:
        sandbox.commands.run(
            "cd w; echo x > f; chmod 600 f; mv f g; mkdir e; rm g; rmdir e; mv /etc/hostname in;"
            "mv in /etc/hostname; touch d/unseen; touch done"
        )
        found = told(events)
    assert [each for each in found if each != ("chmod", "/g", None)] == [
        ("create", "/f", None),
        ("write", "/f", None),
        ("chmod", "/f", None),
        ("rename", "/f", "/root/w/g"),
        ("create", "/e", None),
        ("remove", "/g", None),
        ("remove", "/e", None),
        ("create", "/in", None),
        ("remove", "/in", None),
    ]


def test_what_lies_below(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir -p w/a/b; ln -s /etc w/link")
    with sandbox.files.watch("/root/w", recursive=True) as events:
        sandbox.commands.run(
            "cd w; touch a/b/f; mkdir -p n/m/o; touch n/m/o/f; mv a c; touch c/b/g; rm -r n;"
            "mv c /root/out; touch /root/out/b/unseen; touch /etc/unseen; touch done"
        )
        found = told(events)
    creates = [path for kind, path, _ in found if kind == "create"]
    assert {"/a/b/f", "/n", "/n/m", "/n/m/o", "/n/m/o/f", "/c/b/g"} == set(creates)
    assert ("rename", "/a", "/root/w/c") in found
    removed = [path for kind, path, _ in found if kind == "remove"]
    assert {"/n/m/o/f", "/n/m/o", "/n/m", "/n", "/c"} == set(removed)


@pytest.mark.parametrize("end", ["rmdir /root/w", "mv /root/w /root/elsewhere"])
@pytest.mark.parametrize("recursive", [True, False])
def test_it_ends_with_the_directory(sandbox: Sandbox, end: str, recursive: bool) -> None:
    sandbox.files.make_dir("/root/w")
    with sandbox.files.watch("/root/w", recursive=recursive) as events:
        sandbox.commands.run(end)
        last = list(events)[-1]
    assert (last.type, last.path, last.is_directory) == (WatchKind.REMOVE, "/root/w", True)


def test_it_ends_with_the_sandbox(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        with sandbox.files.watch("/root") as events:
            sandbox.kill()
            with pytest.raises(SandboxGone):
                list(events)


def test_what_cannot_be_watched(sandbox: Sandbox) -> None:
    for path, error in (
        ("/absent", NotFound),
        ("/etc/passwd", InvalidRequest),
        ("relative", InvalidRequest),
    ):
        with pytest.raises(error), sandbox.files.watch(path):
            pass
    with pytest.raises(Unauthorized), sandbox.files.watch("/root", user="nobody"):
        pass


def test_a_watch_that_is_left_leaves_nothing(sandbox: Sandbox) -> None:
    with sandbox.files.watch("/root"):
        pass
    while len(sandbox.commands.run("ps -e --no-headers").stdout.splitlines()) > 3:
        pass


def test_a_slow_reader_is_told_that_it_missed_some(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("/root/w")
    script = (
        "import os\nos.chdir('/root/w')\nname = 'n' * 200\n"
        "for i in range(60000):\n    os.close(os.open(name + str(i), os.O_CREAT))\n"
        "    os.unlink(name + str(i))\n"
    )
    with sandbox.files.watch("/root/w") as events:
        sandbox.commands.run(["python3", "-c", script])
        assert any(event.type is WatchKind.OVERFLOW for event in events)


@pytest.mark.parametrize("reads", [True, False])
def test_a_snapshot_is_possible_meanwhile(sandbox: Sandbox, reads: bool) -> None:
    sandbox.files.make_dir("/root/w")
    with sandbox.files.watch("/root/w", recursive=True) as events:
        if not reads:
            sandbox.commands.run("cd w; for i in $(seq 2000); do echo > $i$i$i; done")
        [fork] = sandbox.fork()
        with fork:
            assert fork.commands.list() == []
        # The watch starts again when it is read.
        for event in events:
            if event.type is WatchKind.OVERFLOW:
                break
        sandbox.commands.run("touch w/after w/done")
        assert ("create", "/after", None) in told(events)


def test_the_same_with_asyncio(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with await AsyncSandbox.create(socket=daemon.socket) as sandbox:
            async with sandbox.files.watch("/root") as events:
                await sandbox.files.write("/root/f", "x")
                async for event in events:
                    if event.path == "/root/f":
                        assert event.type is WatchKind.CREATE
                        break
            tar = await sandbox.files.read_dir("/root")
            await sandbox.files.write_dir("/root/copy", tar)
            assert await sandbox.files.read("/root/copy/f") == "x"

    asyncio.run(asyncio.wait_for(scenario(), 60))
