"""From a run's directory to DIR/report.html."""

from collections.abc import Sequence
from pathlib import Path

from venusrl.report import figures, page
from venusrl.report.excerpts import compared_tasks, still_unsolved
from venusrl.report.run_data import Record, RunData, load_run

REPORT_FILE = "report.html"
_LATENCIES = ("create", "setup", "command", "verify", "kill")


def build_report(out: Path) -> Path:
    """Write the report of the run in ``out`` and return its path."""
    path = out / REPORT_FILE
    path.write_text(render(load_run(out)), encoding="utf-8")
    return path


def render(run: RunData) -> str:
    seed = run.summary.get("seed", "?")
    parts = ["<h1>VenusRL: learning by acting in sandboxes</h1>", _headline(run)]
    if run.summary.get("ended", "completed") != "completed":
        parts.append(page.heading("Not completed", str(run.summary["ended"])))
    parts += [*_learning(run), *_times(run), *_episodes(run), *_figures(run)]
    return page.page(f"VenusRL run, seed {seed}", parts)


def _headline(run: RunData) -> str:
    summary = run.summary

    def change(before: str, after: str) -> str:
        return " → ".join(
            "–" if summary.get(key) is None else f"{summary[key]:.2f}" for key in (before, after)
        )

    return page.headline(
        [
            ("held-out reward, T = 1", change("reward_before", "reward_after")),
            ("held-out reward, greedy", change("greedy_before", "greedy_after")),
            (
                "episodes",
                f"{summary.get('episodes', 0)}, {summary.get('failed_episodes', 0)} failed",
            ),
            ("commands / by the daemon", _commands(summary)),
            ("memory saved by forks", _saved(summary)),
            ("minutes", f"{summary.get('seconds', 0.0) / 60.0:.1f}"),
        ]
    )


def _commands(summary: Record) -> str:
    return f"{summary.get('commands', '–')} / {summary.get('daemon_commands', '–')}"


def _saved(summary: Record) -> str:
    if not summary.get("forks"):
        return "–"
    saved_mib = summary.get("memory_saved_bytes", 0) / (1 << 20)
    return f"{saved_mib:.1f} MiB, {summary['forks']} forks"


def _learning(run: RunData) -> list[str]:
    if not run.evaluations:
        return []
    parts = [
        page.heading("Learning", "Held-out names, contents and shapes occur nowhere in training."),
        page.plot(figures.learning_curve(run.steps, run.evaluations), "reward over updates"),
    ]
    before = run.evaluation("before", greedy=False)
    after = run.evaluation("after", greedy=False)
    if before:
        rewards = after["families"] if after else {}
        parts.append(page.heading("Families"))
        parts.append(page.plot(figures.families(before["families"], rewards), "reward by family"))
    if run.steps:
        parts.append(page.heading("Updates"))
        parts.append(page.plot(figures.training_signals(run.steps), "entropy, gradient, ratio"))
    return parts


def _times(run: RunData) -> list[str]:
    parts = []
    if run.steps:
        parts = [
            page.heading(
                "Where a step's time goes",
                "generate: at least one sequence is being generated (sandboxes work beside it); "
                "sandboxes alone: the engine is idle and episodes wait for sandboxes.",
            ),
            page.plot(figures.step_times(run.steps), "seconds by phase and step"),
        ]
    waits = _latencies(run.episodes)
    if any(waits.values()):
        parts.append(page.heading("Sandbox latencies"))
        parts.append(page.plot(figures.latencies(waits), "percentiles by kind of request"))
    return parts


def _latencies(episodes: Sequence[Record]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in _LATENCIES}
    for episode in episodes:
        for name, values in episode["waits_s"].items():
            found.setdefault(name, []).extend(values)
    return found


def _episodes(run: RunData) -> list[str]:
    pairs = compared_tasks(run.episodes, limit=16)
    unsolved = still_unsolved(run.episodes, limit=6)
    parts = []
    if pairs:
        parts.append(page.heading("The same held-out tasks before and after"))
        parts += [page.compared(before, after) for before, after in pairs]
    if unsolved:
        parts.append(page.heading("Still unsolved"))
        parts += [
            page.paragraph(record["prompt"]) + page.episode(record, record["family"])
            for record in unsolved
        ]
    return parts


def _figures(run: RunData) -> list[str]:
    parts = [page.heading("All figures"), page.definition(run.summary)]
    if run.once_s:
        parts.append(page.definition({f"{name}, seconds": s for name, s in run.once_s.items()}))
    return parts
