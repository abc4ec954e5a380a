"""lease."""

from __future__ import annotations

import dataclasses
import json
import time

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.units import show_duration, table
from sandboxd.client import Daemon


@click.group()
def lease() -> None:
    """Look at leases, and end them."""


@lease.command("ls")
@as_json
@click.pass_obj
def ls(socket: str, as_json: bool) -> None:
    """List your leases; root sees everybody's."""
    with Daemon(socket) as daemon:
        found = daemon.list_leases()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found]))
        return
    rows: list[tuple[str, ...]] = [
        (
            each.id,
            show_duration(each.ttl_s),
            show_duration(each.expires_at - time.time()),
            str(each.sandboxes),
            str(each.templates),
            str(each.tenant_uid),
        )
        for each in found
    ]
    click.echo(table(("ID", "TTL", "LEFT", "SANDBOXES", "TEMPLATES", "UID"), rows))


@lease.command("rm")
@click.argument("lease_ids", metavar="LEASE...", nargs=-1, required=True)
@click.pass_obj
def rm(socket: str, lease_ids: tuple[str, ...]) -> None:
    """End leases, and with them all that was made under them."""
    with Daemon(socket) as daemon:
        for lease_id in lease_ids:
            daemon.release_lease(lease_id)
            click.echo(lease_id)
