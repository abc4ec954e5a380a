"""create, ls, rm, stats."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from typing import Any

import click

from sandboxd.cli.listing import list_options, print_list
from sandboxd.cli.options import as_json, fork_options, one_origin, sandbox_options
from sandboxd.cli.units import DURATION, parse_pairs, show_duration, show_size, table
from sandboxd.client import Daemon, Sandbox, SandboxInfo, SandboxMetrics, VenusError
from sandboxd.errors import NotFound, SandboxGone


@click.command()
@click.option("--image", help="Image to start from.  [default: base]")
@click.option("--template", help="Template to start from instead.")
@sandbox_options
@as_json
@click.pass_obj
def create(
    socket: str, /, image: str | None, template: str | None, as_json: bool, **options: Any
) -> None:
    """Make a sandbox and print its id. It runs until rm, or for --ttl."""
    one_origin(image, template)
    sandbox = Sandbox.create(image, template=template, socket=socket, **fork_options(options))
    sandbox.close()
    click.echo(json.dumps(dataclasses.asdict(sandbox.info)) if as_json else sandbox.sandbox_id)


@click.command()
@list_options
@click.option("--hostname", help="Only those with this host name.")
@click.pass_obj
def ls(
    socket: str, quiet: bool, label: tuple[str, ...], as_json: bool, hostname: str | None
) -> None:
    """List your sandboxes, the oldest first; root sees everybody's."""
    found = Sandbox.list(parse_pairs(label, "--label"), hostname=hostname, socket=socket)
    now = time.time()
    print_list(found, quiet, as_json, _LS_HEADER, lambda info: _ls_row(info, now))


_LS_HEADER = ("ID", "IMAGE", "STATE", "AGE", "LEFT", "MEMORY", "CPUS", "UID", "LABELS")


def _ls_row(info: SandboxInfo, now: float) -> tuple[str, ...]:
    return (
        info.id,
        info.image,
        info.state.value,
        show_duration(now - info.created_at),
        show_duration(None if info.expires_at is None else info.expires_at - now),
        show_size(info.limits.memory_bytes),
        f"{info.limits.cpu_cores:g}",
        str(info.tenant_uid),
        ",".join(f"{name}={value}" for name, value in sorted(info.labels.items())) or "-",
    )


@click.command()
@click.argument("sandbox_ids", metavar="SANDBOX...", nargs=-1)
@click.option("-a", "--all", "everything", is_flag=True, help="Kill all that ls shows.")
@click.pass_obj
def rm(socket: str, sandbox_ids: tuple[str, ...], everything: bool) -> None:
    """Kill sandboxes and delete their files."""
    if everything == bool(sandbox_ids):
        raise click.UsageError("name the sandboxes, or give --all")
    if everything:
        sandbox_ids = tuple(info.id for info in Sandbox.list(socket=socket))
    failed = False
    for sandbox_id in sandbox_ids:
        try:
            sandbox = Sandbox.connect(sandbox_id, socket=socket)
            with sandbox:
                pass
            click.echo(sandbox_id)
        except (NotFound, SandboxGone) as error:
            # With --all it may have ended by itself since it was listed.
            if not everything:
                failed = True
                click.echo(f"venus-sandbox: {error}", err=True)
        except VenusError as error:
            failed = True
            click.echo(f"venus-sandbox: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("sandbox_ids", metavar="SANDBOX...", nargs=-1, required=True)
@click.pass_obj
def pause(socket: str, sandbox_ids: tuple[str, ...]) -> None:
    """Stop all that runs in sandboxes, until they are resumed."""
    for sandbox_id in sandbox_ids:
        with _connected(sandbox_id, socket) as sandbox:
            sandbox.pause()


@click.command()
@click.argument("sandbox_ids", metavar="SANDBOX...", nargs=-1, required=True)
@click.pass_obj
def resume(socket: str, sandbox_ids: tuple[str, ...]) -> None:
    """Let paused sandboxes go on."""
    for sandbox_id in sandbox_ids:
        with _connected(sandbox_id, socket) as sandbox:
            sandbox.resume()


@click.command()
@click.argument("sandbox_id", metavar="SANDBOX")
@click.argument("duration", type=DURATION, required=False)
@click.option("--none", "no_end", is_flag=True, help="It lives until rm.")
@click.pass_obj
def ttl(socket: str, sandbox_id: str, duration: float | None, no_end: bool) -> None:
    """Give a sandbox a new time to live, counted from now."""
    if no_end == (duration is not None):
        raise click.UsageError("give a duration, or --none")
    with _connected(sandbox_id, socket) as sandbox:
        sandbox.set_timeout(duration)


def _connected(sandbox_id: str, socket: str) -> contextlib.closing[Sandbox]:
    return contextlib.closing(Sandbox.connect(sandbox_id, socket=socket))


@click.command()
@click.argument("sandbox_ids", metavar="[SANDBOX...]", nargs=-1)
@as_json
@click.pass_obj
def stats(socket: str, sandbox_ids: tuple[str, ...], as_json: bool) -> None:
    """Show what sandboxes use now; without arguments all of them, and the daemon's counters."""
    with Daemon(socket) as daemon:
        daemon_info = daemon.info()
        found = {each.id: each.metrics for each in daemon.stats()}
    figures = {each: found[each] for each in (sandbox_ids or found) if each in found}
    missing = [each for each in sandbox_ids if each not in figures]
    if as_json:
        sandboxes = {each: dataclasses.asdict(value) for each, value in figures.items()}
        click.echo(json.dumps({"daemon": dataclasses.asdict(daemon_info), "sandboxes": sandboxes}))
    else:
        click.echo(table(_STATS_HEADER, [_stats_row(*item) for item in figures.items()]))
        if not sandbox_ids:
            counters = daemon_info.counters.items()
            click.echo("\n" + "  ".join(f"{name} {value}" for name, value in counters))
            pool = show_size(daemon_info.pool_bytes)
            private = show_size(daemon_info.private_bytes)
            click.echo(
                f"{daemon_info.templates} templates; the page pool holds {pool}, "
                f"the sandboxes by themselves {private}"
            )
    if missing:
        raise click.ClickException(f"no such sandbox: {', '.join(missing)}")


_STATS_HEADER = (
    "ID", "MEMORY", "PEAK", "PRIVATE", "SHARED", "CPU", "PIDS", "DISK", "EXECS", "OOM KILLS",
)  # fmt: skip


def _stats_row(sandbox_id: str, metrics: SandboxMetrics) -> tuple[str, ...]:
    return (
        sandbox_id,
        show_size(metrics.memory_bytes),
        show_size(metrics.memory_peak_bytes),
        show_size(metrics.private_bytes),
        show_size(metrics.shared_bytes),
        f"{metrics.cpu_s:.2f}s",
        str(metrics.pids),
        show_size(metrics.disk_bytes),
        str(metrics.execs_running),
        str(metrics.oom_kills),
    )
