"""All or nothing: a row of steps that are undone in reverse when one fails.

Each step's `undo` knows only the sandbox's id and is idempotent, whether its `do` ran wholly, half
or not at all. So the same row that cleans up after a failure also destroys a sandbox, and removes
what a killed daemon left of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Building = TypeVar("Building")


@dataclass(frozen=True)
class Step(Generic[Building]):
    """One thing that a sandbox consists of."""

    name: str
    do: Callable[[Building], None]
    undo: Callable[[str], None]


def do_all(steps: Sequence[Step[Building]], building: Building, sandbox_id: str) -> None:
    """Run every step; when one fails, undo it and all before it, and raise what it raised."""
    for number, step in enumerate(steps):
        try:
            step.do(building)
        except BaseException as error:
            for failure in _undo(steps[: number + 1], sandbox_id):
                error.add_note(f"and then: {failure}")
            raise


def undo_all(steps: Sequence[Step[Building]], sandbox_id: str) -> None:
    """Undo every step, also when one of them fails; then raise the first failure."""
    failures = _undo(steps, sandbox_id)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and then: {other}")
        raise failures[0]


def _undo(steps: Sequence[Step[Building]], sandbox_id: str) -> list[Exception]:
    failures = []
    for step in reversed(steps):
        try:
            step.undo(sandbox_id)
        except Exception as error:  # the rest must still go; the caller raises or notes it
            error.add_note(f"while undoing {step.name} of {sandbox_id}")
            failures.append(error)
    return failures
