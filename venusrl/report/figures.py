"""The plots of the report, each as an SVG document. Data in, text out."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from venusrl.report.metrics import percentiles
from venusrl.report.run_data import Record

# Paths instead of text: the report looks the same where the font is missing.
matplotlib.rcParams["svg.fonttype"] = "path"

_BLUE, _ORANGE, _GREEN, _GREY = "#3465a4", "#d9741a", "#4e8a3c", "#888888"
_PHASE_COLOURS = {
    "generate": _BLUE,
    "sandboxes alone": _ORANGE,
    "train": _GREEN,
    "push": "#8f5fa8",
    "probe": _GREY,
}


def learning_curve(steps: Sequence[Record], evaluations: Sequence[Record]) -> str:
    """Training reward of every step, and held-out reward wherever it was measured."""
    figure, axes = _figure(8.0, 3.6)
    axes.plot(
        # Step n was sampled by the weights of version n - 1.
        [step["version"] - 1 for step in steps],
        [step["reward"] for step in steps],
        color=_GREY,
        linewidth=1.2,
        label="training tasks, T = 1",
    )
    for greedy, colour, label in (
        (False, _BLUE, "held-out, T = 1"),
        (True, _ORANGE, "held-out, greedy"),
    ):
        chosen = [record for record in evaluations if record["greedy"] is greedy]
        axes.errorbar(
            [record["version"] for record in chosen],
            [record["reward"] for record in chosen],
            yerr=[2.0 * record["standard_error"] for record in chosen],
            color=colour,
            marker="o",
            linewidth=1.6,
            capsize=3,
            label=f"{label} (± 2 standard errors)",
        )
    axes.set_xlabel("weight version (updates)")
    axes.set_ylabel("reward")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    return _svg(figure)


def step_times(steps: Sequence[Record]) -> str:
    """Where the wall time of each step went."""
    figure, axes = _figure(8.0, 3.0)
    numbers = [step["step"] for step in steps]
    bottom = [0.0] * len(steps)
    for phase, colour in _PHASE_COLOURS.items():
        heights = [step["phases_s"].get(phase, 0.0) for step in steps]
        axes.bar(numbers, heights, bottom=bottom, color=colour, width=0.8, label=phase)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xlabel("step")
    axes.set_ylabel("seconds")
    axes.set_ylim(0.0, 1.25 * max(bottom, default=1.0))
    axes.legend(loc="upper center", ncols=len(_PHASE_COLOURS), frameon=False, fontsize=9)
    return _svg(figure)


def latencies(values_s: Mapping[str, Sequence[float]]) -> str:
    """Median, 90th and 99th percentile of each kind of request, in milliseconds."""
    names = [name for name, values in values_s.items() if values]
    figure, axes = _figure(8.0, 0.9 + 0.42 * len(names))
    styles = {"p50": ("o", _BLUE), "p90": ("D", _ORANGE), "p99": ("s", _GREY)}
    for row, name in enumerate(names):
        found = percentiles(values_s[name])
        axes.plot(
            [1000.0 * found["p50"], 1000.0 * found["p99"]], [row, row], color="#cccccc", zorder=1
        )
        for key, (marker, colour) in styles.items():
            axes.scatter(
                [1000.0 * found[key]],
                [row],
                marker=marker,
                color=colour,
                zorder=2,
                label=key if row == 0 else None,
            )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds, as an episode waited for it (under full load)")
    if names:
        axes.legend(loc="best", frameon=False, fontsize=9)
    return _svg(figure)


def families(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Held-out reward of each family, before and after training."""
    names = sorted({*before, *after})
    figure, axes = _figure(8.0, 0.9 + 0.36 * len(names))
    for row, name in enumerate(names):
        for offset, colour, rewards, label in (
            (-0.18, "#b8c4d6", before, "before"),
            (0.18, _BLUE, after, "after"),
        ):
            axes.barh(
                row + offset,
                rewards.get(name, 0.0),
                height=0.34,
                color=colour,
                label=label if row == 0 else None,
            )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("held-out reward, T = 1")
    if names:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2, frameon=False)
    return _svg(figure)


def training_signals(steps: Sequence[Record]) -> str:
    """What tells a healthy update from a broken one."""
    figure = Figure(figsize=(8.0, 2.3), layout="constrained")
    numbers = [step["step"] for step in steps]
    names = {
        "entropy": "entropy, nats per token",
        "grad_norm": "gradient norm",
        "ratio_max": "largest ratio",
    }
    for place, (name, title) in enumerate(names.items(), start=1):
        axes = figure.add_subplot(1, len(names), place)
        axes.plot(numbers, [step["train"][name] for step in steps], color=_BLUE, linewidth=1.4)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        _plain(axes)
    return _svg(figure)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    # A Figure of its own, without pyplot: no global state, no display.
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    _plain(axes)
    return figure, axes


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="both", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    figure.savefig(text, format="svg", metadata=metadata)
    return text.getvalue()
