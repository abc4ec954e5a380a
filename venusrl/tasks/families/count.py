"""Count the lines of a file that hold a word."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "count the lines with {x} in {d}/{f} into {d}/{o}"
SOLUTION = "grep -c {x} {d}/{f} > {d}/{o}"
NOT_COUNTED = "grep {x} {d}/{f} > {d}/{o}"
TO_SCREEN = "grep -c {x} {d}/{f}"
EVERY_LINE = "wc -l < {d}/{f} > {d}/{o}"
OTHERS = "grep -vc {x} {d}/{f} > {d}/{o}"


def _draw(draw: Draw) -> Facts:
    x, f, o = draw.words(3)
    with_word = draw.rng.randint(2, 6)
    # One more or fewer of the others, so that counting those is never right by accident.
    without = with_word + draw.rng.choice((-1, 1))
    # One line holds the word twice: occurrences are not lines.
    lines = [f"{x} {draw.word()} {x}"]
    lines += [f"{draw.word()} {x}" for _ in range(with_word - 1)]
    lines += [draw.word() for _ in range(without)]
    draw.rng.shuffle(lines)
    text = "\n".join(lines) + "\n"
    count = sum(x in line for line in lines)
    return {"d": draw.directory(), "x": x, "f": f, "o": o, "text": text, "count": str(count)}


def _setup(facts: Facts) -> str:
    return scripts.setup(facts, [facts["d"]], {"{d}/{f}".format(**facts): facts["text"]})


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts["f"], facts["o"]]),
        scripts.holds("{d}/{o}".format(**facts), facts["count"] + "\n"),
        scripts.holds("{d}/{f}".format(**facts), facts["text"]),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "not_counted": one(NOT_COUNTED.format(**facts)),
        "to_screen": one(TO_SCREEN.format(**facts), facts["count"] + "\n"),
        "every_line": one(EVERY_LINE.format(**facts)),
        "others": one(OTHERS.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    count = int(facts["count"])
    return (
        f"echo {count + 1} > {facts['d']}/{facts['o']}",
        f"echo {count - 1} > {facts['d']}/{facts['o']}",
        "grep -o {x} {d}/{f} | wc -l > {d}/{o}".format(**facts),
        "grep -c {x} {d}/{f} > {o}".format(**facts),
        "grep -c {x} {d}/{f} > {d}/{o}; grep {x} {d}/{f} > {f} && cp {f} {d}".format(**facts),
    )


FAMILY = Family(
    name="count",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, NOT_COUNTED, TO_SCREEN, EVERY_LINE, OTHERS),
)
