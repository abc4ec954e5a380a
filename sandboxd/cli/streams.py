"""A command's streams and its end, as those of `venus-sandbox` itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

from sandboxd.cli.terminal import converse
from sandboxd.client import CommandHandle, ExitReason, Output, VenusError
from sandboxd.client.types import Exit
from sandboxd.errors import ExecFailed

# As env, timeout and docker have them.
TIMED_OUT = 124
FAILED_TO_RUN = 125
CANNOT_START = 126
NOT_FOUND = 127


def end(exit_: Exit, outputs: list[Output] | None) -> NoReturn:
    """As the program did; `outputs` are printed with it as JSON."""
    if outputs is not None:
        click.echo(_as_json(exit_, outputs))
    elif exit_.reason not in (ExitReason.EXITED, ExitReason.SIGNALED):
        click.echo(f"venus-sandbox: {_EXPLAINED[exit_.reason]}", err=True)
    raise click.exceptions.Exit(
        TIMED_OUT if exit_.reason is ExitReason.TIMEOUT else exit_.shell_code
    )


def end_conversation(handle: CommandHandle) -> NoReturn:
    """In this process's terminal, to the command's end, and then as it did."""
    if not converse(handle):
        click.echo("\r\nvenus-sandbox: left", err=True)
        raise click.exceptions.Exit(0)
    end(handle.exit, None)


_EXPLAINED = {
    ExitReason.TIMEOUT: "the command was killed at its timeout",
    ExitReason.OOM: "the command was killed because the sandbox reached its memory limit",
    ExitReason.KILLED: "the command was killed on request",
    ExitReason.LOST: "the command's end was lost; its sandbox is gone",
}


@contextlib.contextmanager
def failure_told() -> Iterator[None]:
    try:
        yield
    except VenusError as error:
        click.echo(f"venus-sandbox: {error}", err=True)
        raise click.exceptions.Exit(_failure_code(error)) from error


def _failure_code(error: VenusError) -> int:
    if not isinstance(error, ExecFailed):
        return FAILED_TO_RUN
    return NOT_FOUND if "ENOENT" in error.cause else CANNOT_START


def pass_through(handle: CommandHandle, *, interactive: bool, collect: bool) -> list[Output]:
    """Until the command has ended; its output if it is to be collected."""
    outputs = []
    with handle.feeding(sys.stdin.buffer) if interactive else contextlib.nullcontext():
        for output in handle:
            if output.lost:
                click.echo(f"venus-sandbox: {output.lost} bytes of {output.stream} lost", err=True)
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
