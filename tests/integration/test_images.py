"""Images that others made, and what their sandboxes have of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox
from sandboxd.errors import ExecFailed, InvalidRequest
from tests.support.cli import Cli
from tests.support.daemon import DaemonProcess
from tests.support.image_archives import (
    archive,
    directory,
    docker_archive,
    file,
    layout,
    small_layer,
)

CONFIG = {
    "Env": ["PATH=/opt/bin:/usr/bin:/bin", "OF=image", "KEPT=yes"],
    "WorkingDir": "/srv/work",
    "User": "daemon:games",
    "Entrypoint": ["/bin/false"],
    "Cmd": ["never run"],
}
SHOW = 'echo "$OF $KEPT $PATH"; pwd; id -un; id -gn; tool'
TOOL = ("opt/bin/tool", b"#!/bin/sh\necho upper\n")


@pytest.fixture(scope="module")
def layers(base_image_tar: Path) -> list[bytes]:
    entries = (directory("opt/bin"), file(*TOOL), file("usr/bin/.wh.touch", b""))
    return [small_layer(base_image_tar), archive(*entries, mode=0o755)]


def test_an_archive_becomes_an_image_with_its_defaults(
    daemon: DaemonProcess, layers: list[bytes], tmp_path: Path
) -> None:
    cli = Cli(daemon.socket)
    (tmp_path / "docker.tar").write_bytes(docker_archive(layers, CONFIG).tar())
    layout(layers, CONFIG, "+zstd").write(tmp_path / "layout")
    for name, source in (("from-docker", "docker.tar"), ("from-layout", "layout")):
        assert cli.text("image", "import", name, str(tmp_path / source)) == name
        sandbox = cli.text("create", "--image", name)
        said = cli.text("exec", sandbox, "sh", "-c", SHOW).splitlines()
        assert said == [
            "image yes /opt/bin:/usr/bin:/bin", "/srv/work", "daemon", "games", "upper"
        ]  # fmt: skip
        cli("exec", sandbox, "touch", code=127)  # hidden by the upper layer
        cli("rm", sandbox)
    shown = {each["name"]: each for each in json.loads(cli.text("image", "ls", "--json"))}
    for name in ("from-docker", "from-layout"):
        assert shown[name]["entrypoint"] == ["/bin/false"]
        assert shown[name]["command"] == ["never run"]
        assert shown[name]["digest"] == shown["from-docker"]["digest"]
    cli("image", "rm", "from-docker")
    cli("image", "rm", "from-layout")


def test_what_is_asked_for_goes_before_what_the_image_says(
    daemon: DaemonProcess, layers: list[bytes]
) -> None:
    with Daemon(daemon.socket) as client:
        client.import_image_tar("defaults", docker_archive(layers, CONFIG).tar())
        with Sandbox.create(
            "defaults", envs={"OF": "request"}, cwd="/usr", user="root", socket=daemon.socket
        ) as sandbox:
            said = sandbox.commands.run(SHOW).stdout.splitlines()
            assert said[:3] == ["request yes /opt/bin:/usr/bin:/bin", "/usr", "root"]
            [fork] = sandbox.fork()
            with fork:
                assert fork.commands.run(SHOW).stdout.splitlines() == said
        client.remove_image("defaults")


def test_a_hostile_archive_leaves_nothing(daemon: DaemonProcess, layers: list[bytes]) -> None:
    with Daemon(daemon.socket) as client:
        before = client.list_images()
        made = layout([*layers, archive(file("lib/escape"))])
        with pytest.raises(InvalidRequest, match="no directory"):
            client.import_image_tar("hostile", made.tar())
        assert client.list_images() == before
        incoming = daemon.state_dir.glob("*/incoming/*")
        assert list(incoming) == []


def test_a_user_that_the_image_lacks_is_an_error_of_the_command(
    daemon: DaemonProcess, layers: list[bytes]
) -> None:
    with Daemon(daemon.socket) as client:
        client.import_image_tar("nobody", docker_archive(layers, {"User": "stranger"}).tar())
        with Sandbox.create("nobody", socket=daemon.socket) as sandbox:
            with pytest.raises(ExecFailed, match="user"):
                sandbox.commands.run("true")
            assert sandbox.commands.run("id -u", user="root").stdout == "0\n"
        client.remove_image("nobody")
