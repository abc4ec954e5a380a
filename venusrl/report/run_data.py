"""Everything that a run's directory holds, read into plain values for the report."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from venusrl.report.metrics import read_json_lines

Record = dict[str, Any]


@dataclass(frozen=True)
class RunData:
    summary: Record
    steps: list[Record]
    evaluations: list[Record]
    # Seconds of the phases outside the steps, by name.
    once_s: dict[str, float]
    episodes: list[Record]

    def evaluation(self, name: str, *, greedy: bool) -> Record | None:
        for record in self.evaluations:
            if record["name"] == name and record["greedy"] is greedy:
                return record
        return None


def load_run(out: Path) -> RunData:
    """Read what there is; a run that was interrupted early has empty parts."""
    summary_path = out / "summary.json"
    summary: Record = json.loads(summary_path.read_text()) if summary_path.exists() else {}
    steps: list[Record] = []
    evaluations: list[Record] = []
    once_s: dict[str, float] = {}
    for record in read_json_lines(out / "metrics.jsonl"):
        kind = record.get("kind")
        if kind == "step":
            steps.append(record)
        elif kind == "evaluation":
            evaluations.append(record)
        elif kind in ("policy", "engine"):
            once_s[str(kind)] = float(record["seconds"])
    return RunData(
        summary, steps, evaluations, once_s, list(read_json_lines(out / "episodes.jsonl"))
    )
