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


@main.group()
def predictor() -> None:
    """The predictor of trajectory lengths."""


@predictor.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--resamples",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    help="Of the bootstrap, over tasks.",
)
def evaluate(file: Path, resamples: int) -> None:
    """Print how well lengths in FILE, a CSV of messages, are predicted from what came before.

    Spearman's rank correlation with the tokens still to come, its 95 % interval, and the share of
    the longest tenth that is in the predicted tenth; beside them the correlation of the median of
    the finished siblings, and of progress alone.
    """
    from venusrl.predictor.evaluate import evaluate as run
    from venusrl.predictor.lengths import LengthsError, read_lengths

    try:
        tasks = read_lengths(file)
    except LengthsError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{'known':12}{'turn':>5}{'cases':>7}{'spearman':>10}{'95 % interval':>18}"
        f"{'recall':>8}{'median':>8}{'progress':>10}"
    )
    for score in run(tasks, resamples):
        median = "-" if score.sibling_median is None else f"{score.sibling_median:.3f}"
        click.echo(
            f"{score.condition:12}{score.turn:5}{score.cases:7}{score.spearman:10.3f}"
            f"{f'[{score.low:.3f}, {score.high:.3f}]':>18}{score.recall:8.2f}{median:>8}"
            f"{score.progress:10.3f}"
        )
