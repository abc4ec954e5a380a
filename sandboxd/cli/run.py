"""exec and run."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from sandboxd.cli.options import fork_options, one_origin, sandbox_options
from sandboxd.cli.streams import end, end_conversation, failure_told, pass_through
from sandboxd.cli.terminal import own_size
from sandboxd.cli.units import DURATION, parse_pairs
from sandboxd.client import Sandbox

# What follows the sandbox, or the program, is the program's own.
_SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l")
_OPTIONS_COME_FIRST = {"allow_interspersed_args": False}


@click.command("exec", context_settings=_OPTIONS_COME_FIRST)
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input to the command.")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment variable.")
@click.option("-w", "--workdir", help="Working directory.")
@click.option("-u", "--user", help="User: a name, UID or UID:GID of the image.")
@click.option("--timeout", type=DURATION, help="Kill the command and its children after this.")
@click.option("--json", "as_json", is_flag=True, help="Print output and result as one JSON object.")
@click.option("-t", "--tty", is_flag=True, help="Give the program a terminal.")
@click.option("--keep", is_flag=True, help="The program goes on when this command ends before it.")
@click.option("-d", "--detach", is_flag=True, help="Start it in the background; print its id.")
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
    tty: bool,
    keep: bool,
    detach: bool,
    sandbox_id: str,
    argv: tuple[str, ...],
) -> None:
    """Run a program in a sandbox; its output and its exit code become this command's.

    The arguments are the program's, not a shell's: for a shell line write
    `exec ID sh -c 'LINE'`. Interrupting this command kills the program, unless it was started with
    --keep. With -d it runs in the background: see ps, attach, wait and kill. With -d and -i its
    input stays open. With -i and -t every key goes to the program, and ~. at the start of a line
    leaves it.
    """
    argv = _program(argv)
    if tty and as_json:
        raise click.UsageError("-t does not go with --json")
    if detach:
        if keep or as_json:
            raise click.UsageError("-d goes with neither --keep nor --json")
        with failure_told(), contextlib.closing(Sandbox.connect(sandbox_id, socket=socket)) as box:
            started = box.commands.start(
                list(argv),
                envs=parse_pairs(env, "--env"),
                cwd=workdir,
                user=user,
                timeout=timeout,
                stdin=interactive,
                pty=own_size() if tty else None,
            )
        click.echo(started.exec_id)
        return
    with failure_told(), contextlib.ExitStack() as stack:
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
                stdin=interactive and not tty,
                keep=keep,
                pty=own_size() if tty else None,
            )
        )
        if tty and interactive:
            end_conversation(handle)
        outputs = pass_through(handle, interactive=interactive, collect=as_json)
    end(handle.exit, outputs if as_json else None)


@click.command()
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment variable.")
@click.option("-w", "--workdir", help="Working directory.")
@click.option("-u", "--user", help="User: a name, UID or UID:GID of the image.")
@click.argument("sandbox_id", metavar="SANDBOX")
@click.pass_context
def shell(
    ctx: click.Context,
    env: tuple[str, ...],
    workdir: str | None,
    user: str | None,
    sandbox_id: str,
) -> None:
    """Open a shell in a sandbox, in this terminal: bash where there is one, else sh."""
    ctx.invoke(
        exec_,
        interactive=True,
        tty=True,
        env=env,
        workdir=workdir,
        user=user,
        sandbox_id=sandbox_id,
        argv=_SHELL,
    )


@click.command(context_settings=_OPTIONS_COME_FIRST)
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
    argv = _program(argv)
    with failure_told(), contextlib.ExitStack() as stack:
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
        pass_through(handle, interactive=interactive, collect=False)
    end(handle.exit, None)


def _program(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Without the `--` that may come before it."""
    if argv[0] == "--":
        argv = argv[1:]
    if not argv:
        raise click.UsageError("name the program")
    return argv
