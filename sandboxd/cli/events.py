"""events."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.units import parse_pairs
from sandboxd.client import Daemon, SandboxEvent


@click.command()
@click.option("--after", type=click.IntRange(0), help="Number of the last one known.")
@click.option("--sandbox", help="Only of this one.")
@click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help="Only of those with it.")
@click.option("--no-wait", is_flag=True, help="Only those that there are.")
@as_json
@click.pass_obj
def events(
    socket: str,
    after: int | None,
    sandbox: str | None,
    label: tuple[str, ...],
    no_wait: bool,
    as_json: bool,
) -> None:
    """Print what happens to your sandboxes, one event a line, until interrupted."""
    labels = parse_pairs(label, "--label")
    if no_wait and after is None:
        after = 0
    with (
        Daemon(socket) as daemon,
        daemon.events(after=after, sandbox_id=sandbox, metadata=labels, wait=not no_wait) as found,
    ):
        for event in found:
            click.echo(json.dumps(dataclasses.asdict(event)) if as_json else _told(event))


def _told(event: SandboxEvent) -> str:
    details = " ".join(
        f"{name}={value}" for name, value in event.details.items() if value is not None
    )
    if event.type == "missed":
        return f"{event.seq} missed {details or 'some'}"
    moment = dt.datetime.fromtimestamp(event.time).astimezone().isoformat(timespec="milliseconds")
    return f"{event.seq} {moment} {event.sandbox} {event.type} {details}".rstrip()
