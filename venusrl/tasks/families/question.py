"""Two turns: read a question about a file, then write the answer."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.families import notes
from venusrl.tasks.task import Facts, Family, Steps

PROMPT = "answer the question {n} in {d} with a file {o} there"


@dataclass(frozen=True)
class Question:
    # The same question in two phrasings.
    notes: tuple[str, ...]
    # A command that prints the answer.
    command: str
    answer: Callable[[list[str]], str]


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _digest(algorithm: str) -> Callable[[list[str]], str]:
    return lambda lines: hashlib.new(algorithm, _joined(lines).encode()).hexdigest() + "  -\n"


QUESTIONS: dict[str, Question] = {
    "lines": Question(
        ("how many lines has {x}?", "of how many rows does {x} consist?"),
        "wc -l < {d}/{x}",
        lambda lines: f"{len(lines)}\n",
    ),
    "words": Question(
        ("how many words are in {x}?", "{x} is made of how many words?"),
        "wc -w < {d}/{x}",
        lambda lines: f"{len(_joined(lines).split())}\n",
    ),
    "bytes": Question(
        ("how many bytes does {x} take?", "what is the size of {x}?"),
        "wc -c < {d}/{x}",
        lambda lines: f"{len(_joined(lines))}\n",
    ),
    "first": Question(
        ("how does {x} begin?", "what is the opening line of {x}?"),
        "head -n 1 {d}/{x}",
        lambda lines: _joined(lines[:1]),
    ),
    "last": Question(
        ("how does {x} end?", "what is the closing line of {x}?"),
        "tail -n 1 {d}/{x}",
        lambda lines: _joined(lines[-1:]),
    ),
    "without_first": Question(
        ("what remains of {x} without its first line?", "skip one line, then show {x}"),
        "tail -n +2 {d}/{x}",
        lambda lines: _joined(lines[1:]),
    ),
    "bottom_up": Question(
        ("how does {x} read from the bottom up?", "turn {x} upside down"),
        "tac {d}/{x}",
        lambda lines: _joined(lines[::-1]),
    ),
    "mirrored": Question(
        ("how does each line of {x} read backwards?", "{x} in a mirror?"),
        "rev {d}/{x}",
        lambda lines: _joined([line[::-1] for line in lines]),
    ),
    "sorted": Question(
        ("what is the sorted form of {x}?", "put in alphabetical order, how is {x}?"),
        "sort {d}/{x}",
        lambda lines: _joined(sorted(lines)),
    ),
    "sorted_down": Question(
        ("how is {x} sorted from z to a?", "{x} in descending order?"),
        "sort -r {d}/{x}",
        lambda lines: _joined(sorted(lines, reverse=True)),
    ),
    "distinct": Question(
        ("which different lines, sorted, has {x}?", "{x} sorted, but no line twice?"),
        "sort -u {d}/{x}",
        lambda lines: _joined(sorted(set(lines))),
    ),
    "first_words": Question(
        ("what is in the first column of {x}?", "{x}: only the word that each line begins with?"),
        "cut -d' ' -f1 {d}/{x}",
        lambda lines: _joined([line.split()[0] for line in lines]),
    ),
    "second_words": Question(
        ("what is in the second column of {x}?", "{x}: only the word that each line ends with?"),
        "cut -d' ' -f2 {d}/{x}",
        lambda lines: _joined([line.split()[1] for line in lines]),
    ),
    "capitals": Question(
        ("how does {x} look in capitals?", "{x} in upper case?"),
        "tr a-z A-Z < {d}/{x}",
        lambda lines: _joined(lines).upper(),
    ),
    "md5": Question(
        ("what md5 sum has {x}?", "{x} has which message digest 5?"),
        "md5sum < {d}/{x}",
        _digest("md5"),
    ),
    "sha256": Question(
        ("what sha256 sum has {x}?", "{x} has which secure hash of 256 bits?"),
        "sha256sum < {d}/{x}",
        _digest("sha256"),
    ),
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
        "note": draw.rng.choice(QUESTIONS[question].notes).format(**facts) + "\n",
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
    return {
        "to_screen": notes.then(facts, command, facts["answer"]),
        "elsewhere": notes.then(facts, f"{command} > {facts['o']}"),
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
        *(note for question in QUESTIONS.values() for note in question.notes),
        *(question.command + " > {d}/{o}" for question in QUESTIONS.values()),
    ),
)
