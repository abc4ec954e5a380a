"""files: a sandbox's file tree."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from sandboxd.cli.files import Remote, as_remote
from sandboxd.cli.options import as_json
from sandboxd.cli.units import table
from sandboxd.client import FileEntry, Files, Sandbox, WatchEvent

_user = click.option("-u", "--user", help="User inside the sandbox.  [default: the sandbox's]")
_recursive = click.option("-r", "--recursive", is_flag=True, help="Also what is below it.")


class _Place(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    name = "sandbox:path"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Remote:
        place = as_remote(str(value))
        if place is None:
            self.fail(f"{value} is not SANDBOX:PATH", param, ctx)
        return place


_place = click.argument("place", metavar="SANDBOX:PATH", type=_Place())


@contextmanager
def _files(socket: str, place: Remote) -> Iterator[Files]:
    sandbox = Sandbox.connect(place.sandbox_id, socket=socket)
    try:
        yield sandbox.files
    finally:
        sandbox.close()


@click.group()
def files() -> None:
    """Look at and change the file tree of a sandbox."""


@files.command("ls")
@_place
@click.option("--depth", type=click.IntRange(1), default=1, show_default=True, help="Levels.")
@_user
@as_json
@click.pass_obj
def ls(socket: str, place: Remote, depth: int, user: str | None, as_json: bool) -> None:
    """List a directory."""
    with _files(socket, place) as tree:
        listing = tree.listing(place.path, depth=depth, user=user)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in listing.entries]))
    else:
        entries = sorted(listing.entries, key=lambda entry: entry.path)
        click.echo(table(_HEADER, [_row(each, each.path) for each in entries]))
    if listing.truncated:
        click.echo("venus-sandbox: there are more entries than may be listed", err=True)


@files.command("stat")
@_place
@click.option("-L", "--follow", is_flag=True, help="Of a symbolic link: what it leads to.")
@_user
@as_json
@click.pass_obj
def stat(socket: str, place: Remote, follow: bool, user: str | None, as_json: bool) -> None:
    """Show what a path is."""
    with _files(socket, place) as tree:
        entry = tree.stat(place.path, follow=follow, user=user)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(entry)))
    else:
        click.echo(table(_HEADER, [_row(entry, entry.path)]))


_HEADER = ("MODE", "UID", "GID", "SIZE", "CHANGED", "PATH")


def _row(entry: FileEntry, shown: str) -> tuple[str, ...]:
    changed = dt.datetime.fromtimestamp(entry.mtime).astimezone().isoformat(timespec="seconds")
    arrow = f" -> {entry.target}" if entry.target is not None else ""
    return (
        entry.permissions,
        str(entry.uid),
        str(entry.gid),
        str(entry.size_bytes),
        changed,
        shown + arrow,
    )


@files.command("mv")
@_place
@click.argument("new_path")
@click.option("-n", "--no-replace", is_flag=True, help="Fail when the new name is taken.")
@_user
@click.pass_obj
def mv(socket: str, place: Remote, new_path: str, no_replace: bool, user: str | None) -> None:
    """Give a file or directory another name, on the same filesystem."""
    with _files(socket, place) as tree:
        tree.rename(place.path, new_path, replace=not no_replace, user=user)


@files.command("rm")
@_place
@_recursive
@_user
@click.pass_obj
def rm(socket: str, place: Remote, recursive: bool, user: str | None) -> None:
    """Remove a file or an empty directory."""
    with _files(socket, place) as tree:
        tree.remove(place.path, recursive=recursive, user=user)


@files.command("mkdir")
@_place
@click.option("--mode", type=str, default="755", show_default=True, help="Octal.")
@_user
@click.pass_obj
def mkdir(socket: str, place: Remote, mode: str, user: str | None) -> None:
    """Make a directory, and those above it."""
    with _files(socket, place) as tree:
        tree.make_dir(place.path, mode=_octal(mode), user=user)


@files.command("chmod")
@click.argument("mode")
@_place
@_user
@click.pass_obj
def chmod(socket: str, mode: str, place: Remote, user: str | None) -> None:
    """Change the mode, which is octal."""
    with _files(socket, place) as tree:
        tree.chmod(place.path, _octal(mode), user=user)


@files.command("chown")
@click.argument("owner")
@_place
@_user
@click.pass_obj
def chown(socket: str, owner: str, place: Remote, user: str | None) -> None:
    """Change the owner: USER, which stands for its own group too, USER:GROUP, or :GROUP."""
    with _files(socket, place) as tree:
        tree.chown(place.path, owner, user=user)


@files.command("tar")
@_place
@_user
@click.pass_obj
def tar(socket: str, place: Remote, user: str | None) -> None:
    """Write a directory as a tar archive to standard output."""
    with _files(socket, place) as tree:
        for chunk in tree.read_dir(place.path, user=user):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


@files.command("untar")
@_place
@click.option("--owners", is_flag=True, help="As the archive says, not the user's.")
@_user
@click.pass_obj
def untar(socket: str, place: Remote, owners: bool, user: str | None) -> None:
    """Unpack a tar archive from standard input below a directory."""
    with _files(socket, place) as tree:
        tree.write_dir(place.path, sys.stdin.buffer, owners=owners, user=user)


@files.command("watch")
@_place
@_recursive
@_user
@as_json
@click.pass_obj
def watch(socket: str, place: Remote, recursive: bool, user: str | None, as_json: bool) -> None:
    """Print what happens in a directory, one event a line, until interrupted."""
    with _files(socket, place) as tree:
        with tree.watch(place.path, recursive=recursive, user=user) as events:
            for event in events:
                click.echo(json.dumps(dataclasses.asdict(event)) if as_json else _told(event))


def _told(event: WatchEvent) -> str:
    arrow = f" -> {event.target}" if event.target is not None else ""
    return f"{event.type.value} {event.path}{arrow}"


def _octal(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise click.UsageError(f"{text} is not an octal mode") from None
