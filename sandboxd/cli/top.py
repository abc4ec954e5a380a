"""top."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.top_table import SORT_KEYS, Row, rows, shown
from sandboxd.cli.top_table import as_json as rows_as_json
from sandboxd.cli.units import DURATION, parse_pairs
from sandboxd.client import Daemon, SandboxStats

# Of terminals: a screen of its own, without cursor, and back; the upper left corner; to the end of
# the line; to the end of the screen.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command()
@click.option(
    "-s",
    "--sort",
    type=click.Choice(list(SORT_KEYS)),
    default="cpu",
    show_default=True,
    help="What comes first.",
)
@click.option(
    "-i", "--interval", type=DURATION, default="2s", show_default=True, help="Between two looks."
)
@click.option("--once", is_flag=True, help="Print one table, after one interval, and end.")
@click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help="Only those with it.")
@click.option("--lease", help="Only those under this lease.")
@as_json
@click.pass_obj
def top(
    socket: str,
    sort: str,
    interval: float,
    once: bool,
    label: tuple[str, ...],
    lease: str | None,
    as_json: bool,
) -> None:
    """Show what sandboxes use, again and again, until interrupted.

    Where standard output is no terminal it is one table, as with --once. With --json each look is
    an object on a line of its own.
    """
    looks = _looks(socket, sort, interval, parse_pairs(label, "--label"), lease)
    if as_json or once or not sys.stdout.isatty():
        next(looks)  # in which nothing has used any time yet
    if as_json:
        for found in looks:
            click.echo(json.dumps({"time": time.time(), "sandboxes": rows_as_json(found)}))
            if once:
                break
    elif once or not sys.stdout.isatty():
        click.echo(shown(next(looks), time.time()))
    else:
        with _own_screen():
            for found in looks:
                columns, lines = os.get_terminal_size(sys.stdout.fileno())
                _draw(shown(found, time.time(), lines), columns)


def _looks(
    socket: str, sort: str, interval_s: float, labels: dict[str, str], lease: str | None
) -> Iterator[list[Row]]:
    """What there is now, and after each interval; one request, or few, for each."""
    with Daemon(socket) as daemon:
        before: list[SandboxStats] = []
        while True:
            now = daemon.stats(labels, lease=lease)
            yield rows(before, now, sort)
            before = now
            time.sleep(interval_s)


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    """What the person had on the screen comes back."""
    click.echo(_ENTER, nl=False)
    try:
        yield
    finally:
        click.echo(_LEAVE, nl=False)


def _draw(text: str, columns: int) -> None:
    """Over what is there, so that nothing flickers; a line that is too long is cut."""
    lines = (f"{line[:columns]}{_CLEAR_LINE}" for line in text.split("\n"))
    click.echo(_HOME + "\n".join(lines) + _CLEAR_BELOW, nl=False)
