"""Make a directory, with its parents, and a file in it."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "make directory {d}/{a} with a file {b} that says {w}"
SOLUTION = "mkdir -p {d}/{a} && echo {w} > {d}/{a}/{b}"
NO_PARENTS = "mkdir {d}/{a} && echo {w} > {d}/{a}/{b}"
NO_PARENTS_OUTPUT = "mkdir: cannot create directory '{d}/{a}': No such file or directory\n"
WRONG_LEVEL = "mkdir -p {d}/{a} && echo {w} > {d}/{b}"
SWAPPED = "mkdir -p {d}/{a} && echo {b} > {d}/{a}/{w}"


def _draw(draw: Draw) -> Facts:
    a, b, w = draw.words(3)
    return {"d": draw.directory(), "a": a, "b": b, "w": w}


def _setup(facts: Facts) -> str:
    return scripts.setup(facts, [], {})


def _verify(facts: Facts) -> str:
    directory = "{d}/{a}".format(**facts)
    return scripts.verify(
        scripts.lists(facts["d"], [facts["a"]]),
        scripts.lists(directory, [facts["b"]]),
        scripts.holds(f"{directory}/{facts['b']}", f"{facts['w']}\n"),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "no_parents": one(NO_PARENTS.format(**facts), NO_PARENTS_OUTPUT.format(**facts)),
        "wrong_level": one(WRONG_LEVEL.format(**facts)),
        "swapped": one(SWAPPED.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "mkdir -p {d}/{a} && : > {d}/{a}/{b}".format(**facts),
        "mkdir -p {d}/{a} && echo {w}{w} > {d}/{a}/{b}".format(**facts),
        "mkdir -p {d}/{a}/{b} && echo {w} > {d}/{a}/{b}/{w}".format(**facts),
        "mkdir -p {d}/{a} && echo {w} > {d}/{a}/{b} && : > {d}/{a}/{w}".format(**facts),
        "mkdir -p {a} && echo {w} > {a}/{b}".format(**facts),
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
    templates=(PROMPT, SOLUTION, NO_PARENTS, NO_PARENTS_OUTPUT, WRONG_LEVEL, SWAPPED),
)
