"""ps, attach, wait and kill: commands that run already."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterator

import click

from sandboxd.cli.options import as_json
from sandboxd.cli.streams import TIMED_OUT, end, end_conversation, failure_told, pass_through
from sandboxd.cli.terminal import own_size
from sandboxd.cli.units import DURATION, SIGNAL, table
from sandboxd.client import CommandInfo, Sandbox
from sandboxd.errors import Conflict, NotFound, OperationTimeout

sandbox_argument = click.argument("sandbox_id", metavar="SANDBOX")
command_argument = click.argument("command", metavar="COMMAND", type=click.IntRange(min=1))


@contextlib.contextmanager
def _connected(socket: str, sandbox_id: str) -> Iterator[Sandbox]:
    with contextlib.closing(Sandbox.connect(sandbox_id, socket=socket)) as sandbox:
        yield sandbox


@click.command()
@sandbox_argument
@as_json
@click.pass_obj
def ps(socket: str, sandbox_id: str, as_json: bool) -> None:
    """List a sandbox's commands: those that run, and background ones that ended lately."""
    with _connected(socket, sandbox_id) as sandbox:
        found = sandbox.commands.list()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        click.echo(table(_PS_HEADER, [_ps_row(each) for each in found]))


_PS_HEADER = ("ID", "PID", "STATE", "KEPT", "COMMAND")


def _ps_row(info: CommandInfo) -> tuple[str, ...]:
    if info.running:
        state = "running"
    elif info.exit_code is not None:
        state = f"exit {info.exit_code}"
    else:
        state = f"signal {info.signal}" if info.signal is not None else "ended"
    line = shlex.join(info.argv).splitlines() or ["-"]
    shown = line[0] if len(line) == 1 and len(line[0]) <= 60 else f"{line[0][:57]}..."
    return (str(info.exec_id), str(info.pid), state, "yes" if info.kept else "no", shown)


@click.command()
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input to the command.")
@sandbox_argument
@command_argument
@click.pass_obj
def attach(socket: str, interactive: bool, sandbox_id: str, command: int) -> None:
    """Show the output of a background command: the end of what it has written, and what it writes.

    COMMAND is its id, as exec -d and ps print it. Its exit code becomes this command's;
    interrupting this command leaves it running. With -i a command that has a terminal takes over
    this one; ~. at the start of a line leaves it.
    """
    with failure_told(), contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(_connected(socket, sandbox_id))
        handle = sandbox.commands.connect(exec_id=command, max_output_bytes=None)
        stack.callback(handle.disconnect)
        if interactive and sandbox.commands.get(command).pty:
            with contextlib.suppress(NotFound, Conflict):  # it has ended
                handle.resize(own_size())
            end_conversation(handle)
        pass_through(handle, interactive=interactive, collect=False)
    end(handle.exit, None)


@click.command()
@click.option("--timeout", type=DURATION, default="1h", help="Give up after this, at most 1h.")
@sandbox_argument
@command_argument
@click.pass_obj
def wait(socket: str, timeout: float, sandbox_id: str, command: int) -> None:
    """Wait for the end of a background command; its exit code becomes this command's."""
    with failure_told(), _connected(socket, sandbox_id) as sandbox:
        try:
            exit_ = sandbox.commands.wait(command, timeout)
        except OperationTimeout as error:
            click.echo(f"venus-sandbox: {error}", err=True)
            raise click.exceptions.Exit(TIMED_OUT) from error
    end(exit_, None)


@click.command()
@click.option(
    "-s", "--signal", "number", type=SIGNAL, help="Send this to the command's leader instead."
)
@sandbox_argument
@command_argument
@click.pass_obj
def kill(socket: str, number: int | None, sandbox_id: str, command: int) -> None:
    """Kill a command and everything that it started."""
    with _connected(socket, sandbox_id) as sandbox:
        if number is not None:
            sandbox.commands.send_signal(command, number)
        elif not sandbox.commands.kill(exec_id=command):
            raise NotFound(
                "there is no such command that runs", operation="kill", object=f"exec {command}"
            )
