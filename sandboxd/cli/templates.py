"""fork, snapshot, template."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import click

from sandboxd.cli.listing import list_options, print_list
from sandboxd.cli.options import as_json, fork_options, sandbox_options
from sandboxd.cli.units import parse_pairs, show_duration, show_size, table
from sandboxd.client import BuildInfo, Daemon, Sandbox, Template, TemplateInfo
from sandboxd.client.warm_python import warm_python
from sandboxd.protocol import OnExternal

_LABEL_HELP = "Label, for template ls."


on_external = click.option(
    "--on-external",
    default="refuse",
    show_default=True,
    type=click.Choice(["refuse", "reset"]),
    help="What becomes of connections to outside the sandbox.",
)


@click.command()
@click.argument("origin", metavar="SANDBOX|TEMPLATE")
@click.option("-n", "--count", default=1, show_default=True, type=click.IntRange(min=1))
@on_external
@sandbox_options
@as_json
@click.pass_obj
def fork(
    socket: str, /, origin: str, count: int, on_external: OnExternal, as_json: bool, **options: Any
) -> None:
    """Make sandboxes that go on from where another one is now, and print their ids.

    Processes, memory and files are the original's, each fork's own from here on. All of them are
    made, or none.
    """
    made: list[Sandbox]
    if origin.startswith("tp-"):
        if on_external != "refuse":
            raise click.UsageError("--on-external is of snapshots; this template is one already")
        made = Template.get(origin, socket=socket).fork(count, **fork_options(options))
    else:
        original = Sandbox.connect(origin, socket=socket)
        made = original.fork(count, on_external=on_external, **fork_options(options))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each.info) for each in made]))
    else:
        for each in made:
            click.echo(each.sandbox_id)


@click.command()
@click.argument("sandbox")
@click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help=_LABEL_HELP)
@on_external
@as_json
@click.pass_obj
def snapshot(
    socket: str, sandbox: str, label: tuple[str, ...], on_external: OnExternal, as_json: bool
) -> None:
    """Make a template of a sandbox as it is now, and print its id. The sandbox goes on."""
    original = Sandbox.connect(sandbox, socket=socket)
    made = original.snapshot(parse_pairs(label, "--label"), on_external=on_external)
    click.echo(json.dumps(dataclasses.asdict(made.info)) if as_json else made.template_id)


@click.group()
def template() -> None:
    """Templates: captured sandboxes, to be forked any number of times."""


@template.command("build")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help=_LABEL_HELP)
@click.option("-v", "--verbose", is_flag=True, help="Show what the build says, as it comes.")
@as_json
@click.pass_obj
def build(socket: str, file: Path, label: tuple[str, ...], verbose: bool, as_json: bool) -> None:
    """Build a template from a recipe in TOML, or find it built; prints its id."""
    on_log = functools.partial(click.echo, err=True) if verbose else None
    labels = parse_pairs(label, "--label")
    made = Template.build(read_recipe(file), labels, on_log=on_log, socket=socket)
    click.echo(json.dumps(dataclasses.asdict(made.info)) if as_json else made.template_id)


def read_recipe(file: Path) -> dict[str, Any]:
    """The recipe as the daemon takes it. A file of it has its `content` as text, or names a
    `source` beside the recipe."""
    try:
        recipe = tomllib.loads(file.read_text())
        for each in recipe.get("files", ()):
            each["content"] = base64.b64encode(_content(each, file.parent)).decode()
            if isinstance(mode := each.get("mode"), str):
                each["mode"] = int(mode, 8)
        if (warm := recipe.pop("warm_python", None)) is not None:
            recipe = warm_python(recipe, **warm)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise click.ClickException(f"{file} is no recipe: {cause}") from error
    return recipe


def _content(entry: dict[str, Any], beside: Path) -> bytes:
    if "content" in entry:
        text: str = entry["content"]
        return text.encode()
    source: str = entry.pop("source")
    return (beside / source).read_bytes()


@template.command("ls")
@list_options
@click.pass_obj
def list_templates(socket: str, quiet: bool, label: tuple[str, ...], as_json: bool) -> None:
    """List your templates; root sees everybody's."""
    found = Template.list(parse_pairs(label, "--label"), socket=socket)
    now = time.time()
    print_list(found, quiet, as_json, _HEADER, lambda info: _row(info, now))


_HEADER = ("ID", "IMAGE", "OF", "AGE", "PROCESSES", "MEMORY", "INHERITED", "LAYERS", "LABELS")


def _row(info: TemplateInfo, now: float) -> tuple[str, ...]:
    return (
        info.id,
        info.image,
        info.sandbox,
        show_duration(now - info.created_at),
        str(info.processes),
        show_size(info.own_bytes),
        show_size(info.inherited_bytes),
        str(info.layers),
        ",".join(f"{name}={value}" for name, value in sorted(info.labels.items())) or "-",
    )


@template.command("builds")
@as_json
@click.pass_obj
def list_builds(socket: str, as_json: bool) -> None:
    """List builds that run, and those that failed lately."""
    with Daemon(socket) as daemon:
        found = daemon.list_builds()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        click.echo(
            table(("ID", "STATE", "AGE", "RECIPE", "CAUSE"), [_build(each) for each in found])
        )


def _build(info: BuildInfo) -> tuple[str, ...]:
    age = show_duration(time.time() - info.created_at)
    error = info.error or {}
    cause = f"{error.get('object', '')}: {error.get('cause', '')}" if error else "-"
    return info.id, info.state, age, info.recipe[:12], cause.partition("\n")[0][:80]


@template.command("log")
@click.argument("build_id", metavar="BUILD")
@click.pass_obj
def show_log(socket: str, build_id: str) -> None:
    """Print what a build said that runs, or that failed."""
    with Daemon(socket) as daemon:
        click.echo(daemon.get_build(build_id).log, nl=False)


@template.command("show")
@click.argument("template_id", metavar="TEMPLATE")
@click.pass_obj
def show_template(socket: str, template_id: str) -> None:
    """Print all about a template, as JSON."""
    info = Template.get(template_id, socket=socket).info
    click.echo(json.dumps(dataclasses.asdict(info), indent=2))


@template.command("rm")
@click.argument("template_ids", metavar="TEMPLATE...", nargs=-1, required=True)
@click.pass_obj
def remove_templates(socket: str, template_ids: tuple[str, ...]) -> None:
    """Forget templates. Forks of them live on."""
    for template_id in template_ids:
        Template.get(template_id, socket=socket).remove()
        click.echo(template_id)
