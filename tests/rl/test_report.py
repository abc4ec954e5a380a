"""The report is made of text that strangers wrote; and it must stand alone."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from venusrl.report.build import build_report
from venusrl.report.excerpts import compared_tasks, still_unsolved
from venusrl.report.metrics import JsonLines, percentiles, read_json_lines
from venusrl.report.terminal import Terminal

pytestmark = pytest.mark.rl

HOSTILE = '<script>alert("1")</script><img src=http://x/y onerror=1>\'"&\x1b[2J'


def episode(task: str, phase: str, outcome: str, family: str = "create") -> dict[str, Any]:
    return {
        "phase": phase,
        "version": 0,
        "task": task,
        "family": family,
        "group": task,
        "outcome": outcome,
        "failure": HOSTILE if outcome == "failed" else None,
        "prompt": HOSTILE,
        "turns": [{"text": HOSTILE, "observation": HOSTILE, "ran": True, "exit_code": 0}],
        "policy_tokens": 3,
        "seconds": 0.1,
        "waits_s": {"create": [0.01], "command": [0.002, 0.003], "kill": [0.004]},
    }


def step(number: int) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "version": number,
        "reward": 0.4,
        "phases_s": {"generate": 1.0, "sandboxes alone": 0.5, "train": 2.0, "push": 0.1},
        "train": {"entropy": 0.3, "grad_norm": 1.0, "ratio_max": 1.1},
    }


def evaluation(name: str, version: int, greedy: bool) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "name": name,
        "version": version,
        "greedy": greedy,
        "reward": 0.5,
        "standard_error": 0.02,
        "episodes": 4,
        "failed": 0,
        "families": {HOSTILE: 0.5},
        "seconds": 1.0,
    }


def write_run(out: Path) -> None:
    with JsonLines(out / "metrics.jsonl") as metrics:
        metrics.write({"kind": "policy", "seconds": 1.5})
        for name, version in (("before", 0), ("after", 2)):
            for greedy in (False, True):
                metrics.write(evaluation(name, version, greedy))
        metrics.write(step(1))
        metrics.write(step(2))
    with JsonLines(out / "episodes.jsonl") as episodes:
        episodes.write(episode("t1", "before sampled", "unsolved"))
        episodes.write(episode("t1", "after sampled", "solved"))
        episodes.write(episode("t2", "after sampled", "unsolved"))
        episodes.write(episode("t3", "step 1", "failed"))
    (out / "summary.json").write_text(
        json.dumps({"seed": 3, "reward_before": 0.5, "ended": HOSTILE})
    )


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_report_escapes_everything_and_needs_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = build_report(tmp_path).read_text()
    elements = Elements()
    elements.feed(text)
    tags = {tag for tag, _ in elements.seen}
    assert not tags & {"script", "link", "iframe", "object"}
    images = [attributes for tag, attributes in elements.seen if tag == "img"]
    assert len(images) == 5
    for attributes in images:
        assert set(attributes) == {"alt", "src"}
        assert str(attributes["src"]).startswith("data:image/svg+xml;base64,")
    assert "&lt;script&gt;alert(&quot;1&quot;)" in text
    assert "\x1b" not in text
    for _, attributes in elements.seen:
        assert not re.search("//", str(attributes.get("href", "")))


@pytest.mark.parametrize("present", [[], ["metrics.jsonl"], ["summary.json"], ["episodes.jsonl"]])
def test_a_run_that_ended_early_still_has_a_report(tmp_path: Path, present: list[str]) -> None:
    write_run(tmp_path)
    for name in {"metrics.jsonl", "summary.json", "episodes.jsonl"} - set(present):
        (tmp_path / name).unlink()
    assert "</html>" in build_report(tmp_path).read_text()


def test_records_survive_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with JsonLines(path) as lines:
        lines.write({"a": "ä\n"})
    with path.open("a") as file:
        file.write('{"b": ')
    assert list(read_json_lines(path)) == [{"a": "ä\n"}]
    path.write_text('nonsense\n{"b": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        list(read_json_lines(path))


def test_not_a_number_is_refused_at_once(tmp_path: Path) -> None:
    with JsonLines(tmp_path / "m.jsonl") as lines, pytest.raises(ValueError):
        lines.write({"loss": float("nan")})


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles([]) == {}
    found = percentiles([float(n) for n in range(101)])
    assert found == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


def test_excerpts_prefer_what_was_learnt_and_take_one_task_per_family() -> None:
    episodes = [
        episode("a", "before sampled", "solved"),
        episode("b", "before sampled", "unsolved"),
        episode("c", "before sampled", "unsolved", "move"),
        episode("a", "after sampled", "solved"),
        episode("b", "after sampled", "solved"),
        episode("c", "after sampled", "unsolved", "move"),
        episode("b", "after greedy", "solved"),
        episode("d", "after sampled", "unsolved", "move"),
        episode("e", "after sampled", "unsolved", "edit"),
    ]
    assert [after["task"] for _, after in compared_tasks(episodes, 5)] == ["b", "c"]
    assert [record["task"] for record in still_unsolved(episodes, 2)] == ["c", "e"]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_gets_a_live_line_and_notes_stay_whole() -> None:
    pipe, tty = io.StringIO(), Tty()
    for stream in (pipe, tty):
        terminal = Terminal(stream)
        terminal.live("going on")
        # Errors quote what a sandbox printed; it must not drive the reader's terminal.
        terminal.note("done\x1b[2J")
        terminal.end_live()
    assert pipe.getvalue() == "[00:00] done\N{SYMBOL FOR ESCAPE}[2J\n"
    assert tty.getvalue() == (
        "\r\x1b[2Kgoing on\r\x1b[2K[00:00] done\N{SYMBOL FOR ESCAPE}[2J\ngoing on\r\x1b[2K"
    )
