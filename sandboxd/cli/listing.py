"""What every `ls` takes and prints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.units import table
from sandboxd.client import SandboxInfo, TemplateInfo

_Info = TypeVar("_Info", SandboxInfo, TemplateInfo)


def list_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`quiet`, `label` and `as_json`."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
    label = click.option(
        "-l", "--label", multiple=True, metavar="NAME=VALUE", help="Only those with it."
    )
    return quiet(label(as_json(command)))


def print_list(
    found: Sequence[_Info],
    quiet: bool,
    as_json: bool,
    header: tuple[str, ...],
    row: Callable[[_Info], tuple[str, ...]],
) -> None:
    """As JSON, as ids alone, or as a table."""
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(info) for info in found]))
    elif quiet:
        for info in found:
            click.echo(info.id)
    else:
        click.echo(table(header, [row(info) for info in found]))
