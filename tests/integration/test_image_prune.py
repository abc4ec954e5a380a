"""Images that go when nothing uses them, while sandboxes and templates are made of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox, Template
from sandboxd.errors import ImageNotFound
from tests.support.cli import Cli
from tests.support.daemon import DaemonProcess
from tests.support.image_archives import docker_archive, small_layer

ROUNDS = 5


@pytest.fixture
def pruned(tmp_path: Path, needs_root: None) -> Iterator[DaemonProcess]:
    """With sandboxes that are launched ahead, which hold their image, too."""
    process = DaemonProcess("venus-prune", tmp_path / "state", {"standing_sandboxes": "2"})
    try:
        process.start()
        yield process
    finally:
        process.remove()


def test_pruning_takes_nothing_away(pruned: DaemonProcess, base_image_tar: Path) -> None:
    tar = docker_archive([small_layer(base_image_tar)]).tar()
    cli = Cli(pruned.socket)
    ends: list[str] = []

    def create(number: int) -> None:
        try:
            with Sandbox.create("small", socket=pruned.socket) as sandbox:
                ends.append(sandbox.commands.run("cat /etc/passwd > /dev/null; echo ran").stdout)
        except ImageNotFound:
            ends.append("none")

    def build(number: int) -> None:
        recipe = {"image": "small", "setup": [{"command": "true"}], "env": {"N": str(number)}}
        try:
            template = Template.build(recipe, socket=pruned.socket)
        except ImageNotFound:
            ends.append("none")
            return
        [fork] = template.fork()
        with fork:
            ends.append(fork.commands.run("cat /etc/passwd > /dev/null; echo ran").stdout)
        template.remove()

    with Daemon(pruned.socket) as client:
        for number in range(ROUNDS):
            if not client.list_images():
                client.import_image_tar("small", tar)
            makers = [threading.Thread(target=each, args=(number,)) for each in (create, build)]
            for each in makers:
                each.start()
            client.prune_images(every=True)
            for each in makers:
                each.join()
        assert len(ends) == 2 * ROUNDS and set(ends) <= {"ran\n", "none"}
        if not client.list_images():
            client.import_image_tar("small", tar)
        with Sandbox.create("small", socket=pruned.socket):
            assert cli.text("image", "prune", "--all") == ""
        template = Template.build({"image": "small"}, socket=pruned.socket)
        assert cli.text("image", "prune", "--all") == ""
        template.remove()
        assert cli.text("image", "prune", "--all", "--unused-for", "1h") == ""
        assert cli.text("image", "prune") == ""  # it was not pulled
        assert cli.text("image", "prune", "--all") == "small"
