"""exec."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys

import click

from sandboxd.cli.units import DURATION, parse_pairs
from sandboxd.client import ExitReason, Output, Sandbox, VenusError
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
    try:
        exit_, outputs = _run(
            Sandbox.connect(sandbox_id, socket=socket),
            argv,
            interactive=interactive,
            env=parse_pairs(env, "--env"),
            workdir=workdir,
            user=user,
            timeout_s=timeout,
            collect=as_json,
        )
    except VenusError as error:
        click.echo(f"venus-sandbox: {error}", err=True)
        raise click.exceptions.Exit(_failure_code(error)) from error
    if as_json:
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


def _failure_code(error: VenusError) -> int:
    if not isinstance(error, ExecFailed):
        return FAILED_TO_RUN
    return NOT_FOUND if "ENOENT" in error.cause else CANNOT_START


def _run(
    sandbox: Sandbox,
    argv: tuple[str, ...],
    *,
    interactive: bool,
    env: dict[str, str],
    workdir: str | None,
    user: str | None,
    timeout_s: float | None,
    collect: bool,
) -> tuple[Exit, list[Output]]:
    with contextlib.ExitStack() as stack:
        stack.callback(sandbox.close)
        handle = stack.enter_context(
            sandbox.commands.run(
                list(argv),
                True,
                envs=env,
                cwd=workdir,
                user=user,
                timeout=timeout_s,
                stdin=interactive,
            )
        )
        if interactive:
            stack.enter_context(handle.feeding(sys.stdin.buffer))
        outputs = []
        for output in handle:
            if collect:
                outputs.append(output)
            else:
                _pass_on(output)
        return handle.exit, outputs


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
