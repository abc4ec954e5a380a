"""exec and run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from sandboxd.cli.options import fork_options, one_origin, sandbox_options
from sandboxd.cli.units import DURATION, parse_pairs
from sandboxd.client import CommandHandle, ExitReason, Output, Sandbox, VenusError
from sandboxd.client.types import Exit
from sandboxd.errors import ExecFailed

# As env, timeout and docker have them.
TIMED_OUT = 124
FAILED_TO_RUN = 125
CANNOT_START = 126
NOT_FOUND = 127


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input to the command.")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment variable.")
@click.option("-w", "--workdir", help="Working directory.")
@click.option("-u", "--user", help="User: a name, UID or UID:GID of the image.")
@click.option("--timeout", type=DURATION, help="Kill the command and its children after this.")
@click.option("--json", "as_json", is_flag=True, help="Print output and result as one JSON object.")
@click.argument("sandbox_id", metavar="SANDBOX")
@click.argument("argv", metavar="COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def exec_(
    socket: str,
    interactive: bool,
    env: tuple[str, ...],
    workdir: str | None,
    user: str | None,
    timeout: float | None,
    as_json: bool,
    sandbox_id: str,
    argv: tuple[str, ...],
) -> None:
    """Run a program in a sandbox; its output and its exit code become this command's.

    The arguments are the program's, not a shell's: for a shell line write
    `exec ID sh -c 'LINE'`. Interrupting this command kills the program.
    """
    with _failure_told(), contextlib.ExitStack() as stack:
        sandbox = Sandbox.connect(sandbox_id, socket=socket)
        stack.callback(sandbox.close)
        handle = stack.enter_context(
            sandbox.commands.run(
                list(argv),
                True,
                envs=parse_pairs(env, "--env"),
                cwd=workdir,
                user=user,
                timeout=timeout,
                stdin=interactive,
            )
        )
        outputs = _pass_through(handle, interactive=interactive, collect=as_json)
    _end(handle.exit, outputs if as_json else None)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--image", help="Image to start from.  [default: base]")
@click.option("--template", help="Template to start from instead.")
@sandbox_options
@click.option("--rm", "remove", is_flag=True, help="The sandbox goes when the program has ended.")
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input to the program.")
@click.option("--timeout", type=DURATION, help="Kill the program and its children after this.")
@click.argument("argv", metavar="COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(
    socket: str,
    /,
    image: str | None,
    template: str | None,
    remove: bool,
    interactive: bool,
    timeout: float | None,
    argv: tuple[str, ...],
    **options: Any,
) -> None:
    """Make a sandbox and run a program in it: create and exec in one, and the faster for it.

    Without --rm the sandbox stays when the program has ended, and its id is the last line on
    standard error.
    """
    one_origin(image, template)
    with _failure_told(), contextlib.ExitStack() as stack:
        sandbox, handle = Sandbox.start(
            list(argv),
            image,
            template=template,
            remove=remove,
            command_timeout=timeout,
            stdin=interactive,
            socket=socket,
            **fork_options(options),
        )
        stack.callback(sandbox.close)
        if not remove:
            stack.callback(click.echo, f"venus-sandbox: {sandbox.sandbox_id} stays", err=True)
        stack.enter_context(handle)
        _pass_through(handle, interactive=interactive, collect=False)
    _end(handle.exit, None)


def _end(exit_: Exit, outputs: list[Output] | None) -> NoReturn:
    """As the program did; `outputs` are printed with it as JSON."""
    if outputs is not None:
        click.echo(_as_json(exit_, outputs))
    elif exit_.reason not in (ExitReason.EXITED, ExitReason.SIGNALED):
        click.echo(f"venus-sandbox: {_EXPLAINED[exit_.reason]}", err=True)
    raise click.exceptions.Exit(
        TIMED_OUT if exit_.reason is ExitReason.TIMEOUT else exit_.shell_code
    )


_EXPLAINED = {
    ExitReason.TIMEOUT: "the command was killed at its timeout",
    ExitReason.OOM: "the command was killed because the sandbox reached its memory limit",
    ExitReason.KILLED: "the command was killed on request",
    ExitReason.LOST: "the command's end was lost; its sandbox is gone",
}


@contextlib.contextmanager
def _failure_told() -> Iterator[None]:
    try:
        yield
    except VenusError as error:
        click.echo(f"venus-sandbox: {error}", err=True)
        raise click.exceptions.Exit(_failure_code(error)) from error


def _failure_code(error: VenusError) -> int:
    if not isinstance(error, ExecFailed):
        return FAILED_TO_RUN
    return NOT_FOUND if "ENOENT" in error.cause else CANNOT_START


def _pass_through(handle: CommandHandle, *, interactive: bool, collect: bool) -> list[Output]:
    """Until the command has ended; its output if it is to be collected."""
    outputs = []
    with handle.feeding(sys.stdin.buffer) if interactive else contextlib.nullcontext():
        for output in handle:
            if collect:
                outputs.append(output)
            else:
                _pass_on(output)
    return outputs


def _pass_on(output: Output) -> None:
    stream = sys.stdout.buffer if output.stream == "stdout" else sys.stderr.buffer
    stream.write(output.data)
    stream.flush()


def _as_json(exit_: Exit, outputs: list[Output]) -> str:
    text = {
        stream: b"".join(each.data for each in outputs if each.stream == stream).decode(
            "utf-8", "replace"
        )
        for stream in ("stdout", "stderr")
    }
    return json.dumps({**text, **dataclasses.asdict(exit_)})
