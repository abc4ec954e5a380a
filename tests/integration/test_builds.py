"""Builds of recipes: who waits for them, what they say, and what stays of those that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import AsyncDaemon, AsyncTemplate, Daemon, Sandbox, Template
from sandboxd.errors import BuildFailed, Conflict, ImageNotFound, NotFound
from tests.support.cli import Cli
from tests.support.daemon import DaemonProcess
from tests.support.image_archives import archive, docker_archive, file, small_layer

FAILING = {"setup": [{"command": "echo first; echo why >&2; exit 3"}]}


def failed_builds(daemon: DaemonProcess) -> list[str]:
    with Daemon(daemon.socket) as client:
        return [each.id for each in client.list_builds()]


def test_who_goes_away_takes_a_build_from_nobody(daemon: DaemonProcess, tmp_path: Path) -> None:
    """It is the first one that goes, in the middle; the second joins before."""
    (tmp_path / "recipe.toml").write_text(
        '[[setup]]\ncommand = "echo begun; mkfifo /tmp/go; read line < /tmp/go"\n'
    )
    cli = Cli(daemon.socket)
    first = cli.start("template", "build", "-v", str(tmp_path / "recipe.toml"), stdin=b"")
    recipe = {"setup": [{"command": "echo begun; mkfifo /tmp/go; read line < /tmp/go"}]}
    begun = threading.Event()
    made: list[Template] = []

    def second() -> None:
        def on_log(line: str) -> None:
            if line == "begun":
                begun.set()

        made.append(Template.build(recipe, on_log=on_log, socket=daemon.socket))

    waiting = threading.Thread(target=second)
    waiting.start()
    assert begun.wait(60)
    with Daemon(daemon.socket) as client:
        [build] = [each for each in client.list_builds() if each.state == "running"]
        assert "begun" in client.get_build(build.id).log
        first.kill()
        first.wait()
        [builder] = client.list_sandboxes()
        sandbox = Sandbox.connect(builder.id, socket=daemon.socket)
        sandbox.commands.run("echo > /tmp/go")
        waiting.join(60)
        assert len(made) == 1
        # One that succeeded is a template, and no build any more.
        with pytest.raises(NotFound):
            client.get_build(build.id)
        assert client.list_sandboxes() == []
    made[0].remove()


def test_the_log_comes_while_it_is_built_and_stays_when_it_fails(daemon: DaemonProcess) -> None:
    known = failed_builds(daemon)
    lines: list[str] = []
    with pytest.raises(BuildFailed) as failed:
        Template.build(FAILING, on_log=lines.append, socket=daemon.socket)
    assert lines[0].startswith("setup command 0: /bin/sh -c 'echo first;")
    assert {"first", "why"} < set(lines)
    assert any(each.startswith("failed: build template setup command 0") for each in lines)
    [build_id] = set(failed_builds(daemon)) - set(known)
    assert build_id in failed.value.message
    with Daemon(daemon.socket) as client:
        kept = client.get_build(build_id)
        assert kept.log.splitlines() == lines
        assert kept.state == "failed" and kept.error is not None
        assert kept.error["code"] == "build_failed" and kept.error["object"] == "setup command 0"
        assert client.list_sandboxes() == []
    cli = Cli(daemon.socket)
    assert cli("template", "log", build_id).stdout.decode().splitlines() == lines
    assert build_id in cli.text("template", "builds")
    # The next one tries again, and has a log of its own.
    with pytest.raises(BuildFailed):
        Template.build(FAILING, socket=daemon.socket)
    assert len(failed_builds(daemon)) == len(known) + 2


def test_async_log(daemon: DaemonProcess) -> None:
    async def build() -> list[str]:
        lines: list[str] = []
        recipe = {"setup": [{"command": "printf 'no end'"}]}
        template = await AsyncTemplate.build(recipe, on_log=lines.append, socket=daemon.socket)
        again = await AsyncTemplate.build(recipe, on_log=lines.append, socket=daemon.socket)
        assert again.template_id == template.template_id
        await template.remove()
        async with AsyncDaemon(daemon.socket) as client:
            assert {each.id for each in await client.list_builds()} == set(failed_builds(daemon))
        return lines

    assert asyncio.run(build())[-1] == "no end"


def test_a_tenant_sees_its_own_builds_alone(daemon: DaemonProcess) -> None:
    with Daemon(daemon.socket) as client, pytest.raises(NotFound):
        client.get_build("bd-0123456789abcdef")
    with Daemon(daemon.socket) as client, pytest.raises(NotFound):
        client.get_build("../../etc/passwd")


@pytest.fixture
def bounded(base_image_tar: Path, tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(
        "venus-builds", tmp_path / "state",
        {"max_build_log_bytes": "2000", "max_build_logs_per_tenant": "3"},
    )  # fmt: skip
    try:
        process.start()
        with Daemon(process.socket) as client:
            client.import_image_tar("base", docker_archive([small_layer(base_image_tar)]).tar())
        yield process
    finally:
        process.remove()


def test_logs_are_bounded_and_outlive_the_daemon(bounded: DaemonProcess) -> None:
    command = "i=0; while [ $i -lt 999 ]; do i=$((i+1)); echo line $i; done; exit 1"
    for number in range(5):
        recipe = {"setup": [{"command": command}], "env": {"N": str(number)}}
        with pytest.raises(BuildFailed):
            Template.build(recipe, socket=bounded.socket)
    kept = failed_builds(bounded)
    assert len(kept) == 3
    bounded.kill()
    (bounded.state_dir / "builds/bd-0000000000000000.json").write_text("{")
    (bounded.state_dir / "builds/bd-0000000000000000.tmp").write_text("")
    bounded.start()
    assert failed_builds(bounded) == kept
    with Daemon(bounded.socket) as client:
        log = client.get_build(kept[-1]).log
    assert len(log) <= 2000 and "line 999\n" in log and "line 1\n" not in log
    assert len(list((bounded.state_dir / "builds").iterdir())) == 3


def test_another_image_of_the_name_is_another_recipe(
    daemon: DaemonProcess, base_image_tar: Path
) -> None:
    recipe = {"image": "changing", "setup": [{"command": "cat /which > /tmp/seen"}]}
    layer = small_layer(base_image_tar)
    made = []
    with Daemon(daemon.socket) as client:
        with pytest.raises(ImageNotFound):
            Template.build(recipe, socket=daemon.socket)
        for which in (b"one", b"two"):
            content = archive(file("which", which), mode=0o644)
            client.import_image_tar("changing", docker_archive([layer, content]).tar())
            template = Template.build(recipe, socket=daemon.socket)
            with Sandbox.create(template=template, socket=daemon.socket) as sandbox:
                assert sandbox.files.read("/tmp/seen", "bytes") == which
            made.append(template.info.recipe)
            with pytest.raises(Conflict, match="in use"):
                client.remove_image("changing")
            template.remove()
            client.remove_image("changing")
    assert made[0] != made[1]
