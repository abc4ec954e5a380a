"""image ls, import, build-base, rm."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.units import show_duration, show_size, table
from sandboxd.client import Daemon, ImageInfo


@click.group()
def image() -> None:
    """Images that sandboxes start from."""


@image.command("ls")
@as_json
@click.pass_obj
def list_images(socket: str, as_json: bool) -> None:
    """List images."""
    with Daemon(socket) as daemon:
        found = daemon.list_images()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        click.echo(table(("NAME", "SIZE", "AGE", "DIGEST"), [_row(each) for each in found]))


def _row(info: ImageInfo) -> tuple[str, ...]:
    age = show_duration(time.time() - info.created_at) if info.created_at else "-"
    return (info.name, show_size(info.size_bytes), age, info.digest[:19] or "-")


@image.command("import")
@click.argument("name")
@click.argument("source", type=click.Path(exists=True, allow_dash=True))
@click.pass_obj
def import_image(socket: str, name: str, source: str) -> None:
    """Make an image from a file (- for standard input) or a directory.

    It may be a root filesystem, an OCI layout, or what docker save writes; which one is told by
    what it holds. For root only. A directory is read by the daemon, so it must lie on its host.
    """
    with Daemon(socket) as daemon:
        if source == "-":
            daemon.import_image_tar(name, sys.stdin.buffer)
        elif os.path.isdir(source):
            daemon.import_image_directory(name, source)
        else:
            with open(source, "rb") as tar:
                daemon.import_image_tar(name, tar)
    click.echo(name)


@image.command("build-base")
@click.argument("name", default="base")
@click.option("--suite", help="Debian suite.  [default: the daemon's]")
@click.option("-p", "--package", "packages", multiple=True, help="Further Debian package.")
@click.pass_obj
def build_base(socket: str, name: str, suite: str | None, packages: tuple[str, ...]) -> None:
    """Build a small Debian image with mmdebstrap on the daemon's host; for root only."""
    with Daemon(socket) as daemon:
        for line in daemon.build_base_image(name, suite=suite, packages=packages):
            click.echo(line, err=True)
    click.echo(name)


@image.command("rm")
@click.argument("name")
@click.pass_obj
def remove_image(socket: str, name: str) -> None:
    """Remove an image that no sandbox uses; for root only."""
    with Daemon(socket) as daemon:
        daemon.remove_image(name)
    click.echo(name)
