"""What a task is, and what a family of tasks has to provide.

A task is text and two POSIX shell scripts. Both run in the sandbox as its root, in
``/root/work``: ``setup`` before the first turn, ``verify`` after the last one. ``verify`` looks
at the sandbox's state alone and exits 0 (solved) or 1 (not solved); any other exit means that
the verifier itself broke.

Does not handle: running anything. Demonstrations carry *predicted* observations; the tests run
them in a sandbox and compare byte for byte.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from venusrl.tasks.draw import Draw

Split = Literal["warmup", "train", "held_out"]
SPLITS: tuple[Split, ...] = ("warmup", "train", "held_out")

# The claim that two-turn tasks cannot be solved blind rests on this bound (families/notes.py):
# with no bound, one command could hold the translation of every note.
MAX_COMMAND_CHARACTERS = 56

# The names and contents of one task: what templates are filled with.
Facts = Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """One turn of a demonstration.

    ``observation`` is everything that the command writes to stdout and stderr, to the byte, in
    the daemon's default environment (UTF-8, so GNU programs quote with typographic marks).
    """

    command: str
    observation: str


Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Demonstration:
    """A whole episode; ``flaw`` names the mistake in it, None if it solves the task."""

    steps: Steps
    flaw: str | None


@dataclass(frozen=True)
class Task:
    task_id: str
    family: str
    split: Split
    prompt: str
    max_turns: int
    setup: str
    verify: str
    # For demonstrations and tests; the policy never sees it.
    facts: Facts = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True)
class Family:
    """One kind of task. Everything is a function of the facts, hence of split and seed."""

    name: str
    max_turns: int
    prompt: str
    draw: "Callable[[Draw], Facts]"
    setup: Callable[[Facts], str]
    verify: Callable[[Facts], str]
    solve: Callable[[Facts], Steps]
    # Kind of mistake -> the episode that makes it. A mistake that happens to solve this very
    # task (a sort order that makes no difference) is left out.
    flaws: Callable[[Facts], Mapping[str, Steps]]
    # At least three scripts that leave a state close to the solution, but wrong.
    near_misses: Callable[[Facts], tuple[str, ...]]
    # Every template of text that an episode's context may hold (so not the output of a last
    # command): the source of the tokenizer's fixed fragments.
    templates: tuple[str, ...]


def one(command: str, observation: str = "") -> Steps:
    """A demonstration of a single turn."""
    return (Step(command, observation),)
