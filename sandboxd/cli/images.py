"""image ls, import, pull, build-base, prune, rm."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.units import DURATION, show_duration, show_size, table
from sandboxd.client import Daemon, ImageInfo
from sandboxd.client._image_calls import image_name


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


@image.command("pull")
@click.argument("reference")
@click.argument("name", required=False)
@click.option("-u", "--username", help="Login at the registry; needs --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--auth-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Credentials as podman login writes them; root's alone, on the daemon's host.",
)
@click.option("--insecure", is_flag=True, help="Plain HTTP, or any certificate.")
@click.pass_obj
def pull(
    socket: str,
    reference: str,
    name: str | None,
    username: str | None,
    password_stdin: bool,
    auth_file: str | None,
    insecure: bool,
) -> None:
    """Pull an image from a registry, over the network of the daemon's host; for root only.

    Its NAME here is by default the last part of the reference: python-3.12 of
    docker.io/library/python:3.12.
    """
    if (username is not None) != password_stdin:
        raise click.UsageError("--username and --password-stdin go together")
    password = sys.stdin.read().rstrip("\r\n") if password_stdin else None
    name = name or image_name(reference)
    with Daemon(socket) as daemon:
        for line in daemon.pull_image(
            reference,
            name,
            username=username,
            password=password,
            auth_file=auth_file,
            insecure=insecure,
        ):
            click.echo(line, err=True)
    click.echo(name)


@image.command("prune")
@click.option("--unused-for", type=DURATION, help="At least so long, as 7d.")
@click.option("--all", "every", is_flag=True, help="Also images that were not pulled.")
@click.pass_obj
def prune(socket: str, unused_for: float | None, every: bool) -> None:
    """Remove pulled images that no sandbox and no template uses, and print their names; for root
    only."""
    with Daemon(socket) as daemon:
        for info in daemon.prune_images(unused_for or 0.0, every=every):
            click.echo(info.name)


@image.command("rm")
@click.argument("name")
@click.pass_obj
def remove_image(socket: str, name: str) -> None:
    """Remove an image that no sandbox uses; for root only."""
    with Daemon(socket) as daemon:
        daemon.remove_image(name)
    click.echo(name)
