"""The command line of the demo."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import click
import psutil
import transformers

from sandboxd.errors import VenusError
from venusrl.demo.config import DemoConfig
from venusrl.demo.presets import full, quick
from venusrl.demo.recorder import Recorder
from venusrl.demo.session import DemoSession
from venusrl.engine import EngineError, LogprobMismatch
from venusrl.report.build import build_report
from venusrl.report.terminal import Terminal

# As shells report a program that an interrupt ended.
_INTERRUPTED = 130


@click.command()
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Directory of the run; runs/demo-TIME by default.",
)
@click.option("--steps", type=click.IntRange(min=1), default=None, help="Training steps.")
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="Hugging Face directory to train instead of the made policy.",
)
@click.option("--socket", default=None, help="The daemon's; $VENUS_SOCKET by default.")
@click.option("--image", default="base", show_default=True)
@click.option(
    "--time-budget-s",
    type=click.FloatRange(min=60),
    default=None,
    help="Training ends early rather than pass it.",
)
@click.option(
    "--shuffle-rewards",
    is_flag=True,
    help="Control: rewards change places within their group; nothing may be learnt.",
)
@click.option(
    "--quick", "is_quick", is_flag=True, help="A tiny run of all the parts; teaches nearly nothing."
)
def main(
    seed: int,
    out: Path | None,
    steps: int | None,
    model: Path | None,
    socket: str | None,
    image: str,
    time_budget_s: float | None,
    shuffle_rewards: bool,
    is_quick: bool,
) -> None:
    """Train a small policy with GRPO; it acts in sandboxes of the daemon at --socket."""
    if out is None:
        out = Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    if (out / "summary.json").exists():
        raise click.UsageError(f"{out} holds a finished run; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    make = quick if is_quick else full
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = make(
        out,
        seed=seed,
        model=model,
        socket=socket,
        image=image,
        steps=steps,
        time_budget_s=time_budget_s,
        shuffle_rewards=shuffle_rewards,
    )
    sys.exit(asyncio.run(_run(config)))


async def _run(config: DemoConfig) -> int:
    terminal = Terminal(sys.stdout)
    recorder = Recorder(config.out, terminal)
    session = DemoSession(config, recorder)
    work = asyncio.ensure_future(session.run())
    _end_on_interrupt(work, terminal)
    status = 0
    try:
        await work
    except asyncio.CancelledError:
        session.summary.ended = "interrupted"
        status = _INTERRUPTED
    except (VenusError, EngineError, LogprobMismatch, RuntimeError) as error:
        session.summary.ended = f"{type(error).__name__}: {error}"
        terminal.note(f"the run stopped: {session.summary.ended}")
        status = 1
    finally:
        recorder.close()
        session.summary.write(config.out)
    report = build_report(config.out)
    for key, value in session.summary.record().items():
        terminal.note(f"{key}: {value}")
    terminal.note(f"report: {report.resolve()}")
    return status


def _end_on_interrupt(work: "asyncio.Future[None]", terminal: Terminal) -> None:
    """The first Ctrl-C ends the run in order, the second one at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _abort)
        terminal.note("interrupted: saving what there is; once more aborts")
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)


def _abort() -> None:
    # The engine's processes would outlive this one, holding memory.
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(_INTERRUPTED)
