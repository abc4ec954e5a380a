"""Two turns: read a question about a file, then write the answer."""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.families import notes
from venusrl.tasks.task import Facts, Family, Steps

PROMPT = "answer the question {n} in {d} with a file {o} there"
WHOLE_FILE = "cat {d}/{x} > {d}/{o}"


@dataclass(frozen=True)
class Question:
    note: str
    # A command that prints the answer.
    command: str
    answer: Callable[[list[str]], str]


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _digest(algorithm: str) -> Callable[[list[str]], str]:
    return lambda lines: hashlib.new(algorithm, _joined(lines).encode()).hexdigest() + "  -\n"


QUESTIONS: dict[str, Question] = {
    "lines": Question(
        "how many lines has {x}?", "wc -l < {d}/{x}", lambda lines: f"{len(lines)}\n"
    ),
    "words": Question(
        "how many words are in {x}?",
        "wc -w < {d}/{x}",
        lambda lines: f"{len(_joined(lines).split())}\n",
    ),
    "bytes": Question(
        "how many bytes does {x} take?",
        "wc -c < {d}/{x}",
        lambda lines: f"{len(_joined(lines))}\n",
    ),
    "first": Question("how does {x} begin?", "head -n 1 {d}/{x}", lambda lines: _joined(lines[:1])),
    "last": Question("how does {x} end?", "tail -n 1 {d}/{x}", lambda lines: _joined(lines[-1:])),
    "second": Question(
        "what is line two of {x}?", "sed -n 2p {d}/{x}", lambda lines: _joined(lines[1:2])
    ),
    "without_first": Question(
        "what remains of {x} without its first line?",
        "tail -n +2 {d}/{x}",
        lambda lines: _joined(lines[1:]),
    ),
    "without_last": Question(
        "what remains of {x} without its last line?",
        "head -n -1 {d}/{x}",
        lambda lines: _joined(lines[:-1]),
    ),
    "bottom_up": Question(
        "how does {x} read from the bottom up?", "tac {d}/{x}", lambda lines: _joined(lines[::-1])
    ),
    "mirrored": Question(
        "how does each line of {x} read backwards?",
        "rev {d}/{x}",
        lambda lines: _joined([line[::-1] for line in lines]),
    ),
    "sorted": Question(
        "what is the sorted form of {x}?", "sort {d}/{x}", lambda lines: _joined(sorted(lines))
    ),
    "sorted_down": Question(
        "how is {x} sorted from z to a?",
        "sort -r {d}/{x}",
        lambda lines: _joined(sorted(lines, reverse=True)),
    ),
    "distinct": Question(
        "which different lines, sorted, has {x}?",
        "sort -u {d}/{x}",
        lambda lines: _joined(sorted(set(lines))),
    ),
    "first_words": Question(
        "what is in the first column of {x}?",
        "cut -d' ' -f1 {d}/{x}",
        lambda lines: _joined([line.split()[0] for line in lines]),
    ),
    "second_words": Question(
        "what is in the second column of {x}?",
        "cut -d' ' -f2 {d}/{x}",
        lambda lines: _joined([line.split()[1] for line in lines]),
    ),
    "capitals": Question(
        "how does {x} look in capitals?",
        "tr a-z A-Z < {d}/{x}",
        lambda lines: _joined(lines).upper(),
    ),
    "encoded": Question(
        "what is {x} in base 64?",
        "base64 -w0 {d}/{x}",
        lambda lines: base64.b64encode(_joined(lines).encode()).decode(),
    ),
    "md5": Question("what md5 sum has {x}?", "md5sum < {d}/{x}", _digest("md5")),
    "sha1": Question("what sha1 sum has {x}?", "sha1sum < {d}/{x}", _digest("sha1")),
    "sha256": Question("what sha256 sum has {x}?", "sha256sum < {d}/{x}", _digest("sha256")),
}


def _draw(draw: Draw) -> Facts:
    n, o, x = draw.words(3)
    first, second, third = (" ".join(draw.words(2)) for _ in range(3))
    # One line comes twice, and the lines are in no order, so that no two answers agree.
    lines = sorted([first, second, third])
    lines = [lines[1], lines[2], lines[1], lines[0]]
    question = draw.rng.choice(list(QUESTIONS))
    facts = {"d": draw.directory(), "n": n, "o": o, "x": x, "question": question}
    return {
        **facts,
        "text": _joined(lines),
        "note": QUESTIONS[question].note.format(**facts) + "\n",
        "answer": QUESTIONS[question].answer(lines),
    }


def _setup(facts: Facts) -> str:
    files = {"{d}/{n}": facts["note"], "{d}/{x}": facts["text"]}
    paths = {path.format(**facts): text for path, text in files.items()}
    return scripts.setup(facts, [facts["d"]], paths)


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts[name] for name in ("n", "o", "x")]),
        scripts.holds("{d}/{o}".format(**facts), facts["answer"]),
        scripts.holds("{d}/{x}".format(**facts), facts["text"]),
    )


def _solve(facts: Facts) -> Steps:
    command = QUESTIONS[facts["question"]].command + " > {d}/{o}"
    return notes.then(facts, command.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    command = QUESTIONS[facts["question"]].command.format(**facts)
    about_note = QUESTIONS[facts["question"]].command.replace("{x}", "{n}") + " > {d}/{o}"
    return {
        "to_screen": notes.then(facts, command, facts["answer"]),
        "elsewhere": notes.then(facts, f"{command} > {facts['o']}"),
        "about_note": notes.then(facts, about_note.format(**facts)),
        "whole_file": notes.then(facts, WHOLE_FILE.format(**facts)),
        **notes.unfound(facts),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    right = (QUESTIONS[facts["question"]].command + " > {d}/{o}").format(**facts)
    return (
        right + "; echo >> {d}/{o}".format(**facts),
        right + "; cp {d}/{o} {d}/{x}".format(**facts),
        right + "; mv {d}/{o} {d}/{o}{n}".format(**facts),
        ": > {d}/{o}".format(**facts),
    )


FAMILY = Family(
    name="question",
    max_turns=2,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(
        PROMPT,
        *notes.TEMPLATES,
        *(question.note for question in QUESTIONS.values()),
        *(question.command + " > {d}/{o}" for question in QUESTIONS.values()),
        WHOLE_FILE,
    ),
)
