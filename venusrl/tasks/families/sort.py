"""Sort lines by a number in their second column."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "sort {d}/{f} by column 2, largest number first, into {d}/{o}"
SOLUTION = "sort -k2nr {d}/{f} > {d}/{o}"
AS_TEXT = "sort -k2r {d}/{f} > {d}/{o}"
SMALLEST_FIRST = "sort -k2n {d}/{f} > {d}/{o}"
FIRST_COLUMN = "sort -r {d}/{f} > {d}/{o}"
TO_SCREEN = "sort -k2nr {d}/{f}"


def _draw(draw: Draw) -> Facts:
    f, o = draw.words(2)
    # As text, the one-digit number comes before the three-digit one.
    numbers = [draw.rng.randint(5, 9), draw.rng.randint(100, 499)]
    numbers += draw.rng.sample(range(10, 100), 2)
    numbers.sort(reverse=True)
    names = draw.words(4)
    # Neither order of the first column may agree with that of the second.
    while names in (sorted(names), sorted(names, reverse=True)):
        draw.rng.shuffle(names)
    lines = [f"{name} {number}\n" for name, number in zip(names, numbers, strict=True)]
    shuffled = list(lines)
    while shuffled in (lines, lines[::-1]):
        draw.rng.shuffle(shuffled)
    return {
        "d": draw.directory(),
        "f": f,
        "o": o,
        "text": "".join(shuffled),
        "sorted": "".join(lines),
    }


def _setup(facts: Facts) -> str:
    return scripts.setup(facts, [facts["d"]], {"{d}/{f}".format(**facts): facts["text"]})


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts["f"], facts["o"]]),
        scripts.holds("{d}/{o}".format(**facts), facts["sorted"]),
        scripts.holds("{d}/{f}".format(**facts), facts["text"]),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "as_text": one(AS_TEXT.format(**facts)),
        "smallest_first": one(SMALLEST_FIRST.format(**facts)),
        "first_column": one(FIRST_COLUMN.format(**facts)),
        "to_screen": one(TO_SCREEN.format(**facts), facts["sorted"]),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "sort -k2nr {d}/{f} | head -n 3 > {d}/{o}".format(**facts),
        "sort -k2nr {d}/{f} | cut -d' ' -f1 > {d}/{o}".format(**facts),
        "sort -k2nr {d}/{f} > {d}/{o} && mv {d}/{o} {d}/{f}".format(**facts),
        "sort -k2nr -o {d}/{f} {d}/{f} && cp {d}/{f} {d}/{o}".format(**facts),
        "cp {d}/{f} {d}/{o}".format(**facts),
    )


FAMILY = Family(
    name="sort",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, AS_TEXT, SMALLEST_FIRST, FIRST_COLUMN, TO_SCREEN),
)
