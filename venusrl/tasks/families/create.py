"""Make a directory whose parents are missing."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "make the directory {a} inside {d} and the directory {b} inside {a}"
SOLUTION = "mkdir -p {d}/{a}/{b}"
NO_PARENTS = "mkdir {d}/{a}/{b}"
NO_PARENTS_OUTPUT = "mkdir: cannot create directory ‘{d}/{a}/{b}’: No such file or directory\n"
SIDE_BY_SIDE = "mkdir -p {d}/{a} {d}/{b}"
SWAPPED = "mkdir -p {d}/{b}/{a}"


def _draw(draw: Draw) -> Facts:
    a, b = draw.words(2)
    return {"d": draw.directory(), "a": a, "b": b}


def _setup(facts: Facts) -> str:
    return scripts.setup(facts, [], {})


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts["a"]]),
        scripts.lists("{d}/{a}".format(**facts), [facts["b"]]),
        scripts.lists("{d}/{a}/{b}".format(**facts), []),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "no_parents": one(NO_PARENTS.format(**facts), NO_PARENTS_OUTPUT.format(**facts)),
        "side_by_side": one(SIDE_BY_SIDE.format(**facts)),
        "swapped": one(SWAPPED.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "mkdir -p {d}/{a} && : > {d}/{a}/{b}".format(**facts),
        "mkdir -p {d}/{a}/{b} {d}/{b}".format(**facts),
        "mkdir -p {d}/{a}/{b}{a}".format(**facts),
        "mkdir -p {a}/{b}".format(**facts),
        "mkdir -p {d}/{a}/{b}/{a}".format(**facts),
    )


FAMILY = Family(
    name="create",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, NO_PARENTS, SIDE_BY_SIDE, SWAPPED),
)
