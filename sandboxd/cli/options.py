"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from sandboxd.cli.units import DURATION, SIZE, parse_pairs
from sandboxd.client import ForkOptions

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_OPTIONS = (
    click.option("--memory", type=SIZE, help="Memory limit, for instance 512M."),
    click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="CPU limit in cores."),
    click.option("--pids", type=click.IntRange(min=1), help="Limit on processes and threads."),
    click.option("--disk", type=SIZE, help="Limit on what it writes, for instance 2G."),
    click.option("--ttl", type=DURATION, help="Kill it after this time, for instance 90s or 1h."),
    click.option(
        "-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment of commands."
    ),
    click.option("-w", "--workdir", help="Directory of commands."),
    click.option("-u", "--user", help="User of commands: a name, UID or UID:GID of the image."),
    click.option("--hostname", help="Host name inside."),
    click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help="Label, for ls."),
    click.option("--lease", help="It goes when this lease ends."),
)


def sandbox_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What may be said of any new sandbox."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def one_origin(image: str | None, template: str | None) -> None:
    """A usage error when both are given."""
    if image is not None and template is not None:
        raise click.UsageError("--image and --template exclude each other")


def fork_options(given: Mapping[str, Any]) -> ForkOptions:
    """The values of `sandbox_options`, as the client takes them."""
    return {
        "memory_bytes": given["memory"],
        "pids": given["pids"],
        "cpu_cores": given["cpus"],
        "disk_bytes": given["disk"],
        "envs": parse_pairs(given["env"], "--env"),
        "cwd": given["workdir"],
        "user": given["user"],
        "hostname": given["hostname"],
        "timeout": given["ttl"],
        "metadata": parse_pairs(given["label"], "--label"),
        "lease": given["lease"],
    }
