"""Append-only lines of JSON: one object per line, readable while the run goes on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO


class JsonLines:
    """Each record is written at once, so that a run that dies leaves what it had."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        # NaN is not JSON; a reader should fail here, at the cause, and not somewhere else.
        self._file.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of ``path``; a last line that was cut short by a crash is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"read {path}, line {number}: {error}") from error


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """``p50``, ``p90``, ``p99`` and ``max``, by the nearest rank; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    ranks = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}
    return {name: ordered[round(rank * last)] for name, rank in ranks.items()}
