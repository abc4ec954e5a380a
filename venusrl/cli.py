"""The command ``venusrl``."""

from pathlib import Path

import click


@click.group()
def main() -> None:
    """Reinforcement learning that acts in sandboxes."""


@main.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Train a small policy and write a report; see `venusrl demo --help`."""
    # Imported here: torch takes seconds to load, and --help of the group does not need it.
    from venusrl.demo.__main__ import main as run_demo

    run_demo.main(list(arguments), prog_name="venusrl demo")


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
def report(directory: Path) -> None:
    """Write DIRECTORY/report.html again from the files of a run."""
    from venusrl.report.build import build_report

    click.echo(build_report(directory))
