"""`venus-sandbox`: sandboxes from a shell.

Exit codes: that of the command for `exec`, `run`, `attach` and `wait` (128 + signal for one that a
signal ended, 124 after a timeout, 126 for a program that cannot be started, 127 for one that is not
found, 125 when one of these itself failed); 2 for wrong usage; 1 for any other error.
"""

from __future__ import annotations

import os
import sys

import click

from sandboxd import __version__
from sandboxd.cli import (
    commands,
    doctor,
    events,
    file_tree,
    files,
    images,
    leases,
    port_forward,
    run,
    sandboxes,
    serve_swerex,
    templates,
    top,
)
from sandboxd.client import VenusError
from sandboxd.protocol import DEFAULT_SOCKET, SOCKET_ENV


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="venus-sandbox")
@click.option(
    "--socket",
    envvar=SOCKET_ENV,
    default=DEFAULT_SOCKET,
    show_default=True,
    show_envvar=True,
    type=click.Path(),
    help="The daemon's socket.",
)
@click.pass_context
def cli(ctx: click.Context, socket: str) -> None:
    """Make and use isolated Linux sandboxes served by sandboxd."""
    ctx.obj = socket


for command in (
    sandboxes.create,
    run.exec_,
    run.shell,
    run.run,
    commands.ps,
    commands.attach,
    commands.wait,
    commands.kill,
    files.cp,
    file_tree.files,
    sandboxes.ls,
    sandboxes.rm,
    sandboxes.stats,
    top.top,
    events.events,
    port_forward.port_forward,
    leases.lease,
    sandboxes.pause,
    sandboxes.resume,
    sandboxes.ttl,
    templates.fork,
    templates.snapshot,
    templates.template,
    images.image,
    doctor.doctor,
    serve_swerex.serve_swerex,
):
    cli.add_command(command)


def main() -> None:
    try:
        status = cli(prog_name="venus-sandbox", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = 130
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does. Python would complain again when it
        # flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except VenusError as error:
        click.echo(f"venus-sandbox: {error}", err=True)
        status = 1
    sys.exit(status if isinstance(status, int) else 0)
