"""Run a script with a variable in its environment."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "run {d}/{s} with variable {v} set to {w}"
SOLUTION = "{v}={w} sh {d}/{s}"
NOT_EXPORTED = "{v}={w}; sh {d}/{s}"
ARGUMENT = "sh {d}/{s} {v}={w}"
SWAPPED = "{w}={v} sh {d}/{s}"


def _draw(draw: Draw) -> Facts:
    s, v, w, o = draw.words(4)
    d = draw.directory()
    # The prompt does not name the script's output, so that it cannot be written by hand.
    return {"d": d, "s": s, "v": v, "w": w, "o": o, "script": f'echo "${v} $1" > {d}/{o}\n'}


def _setup(facts: Facts) -> str:
    return scripts.setup(facts, [facts["d"]], {"{d}/{s}".format(**facts): facts["script"]})


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts["s"], facts["o"]]),
        scripts.holds("{d}/{o}".format(**facts), f"{facts['w']} \n"),
        scripts.holds("{d}/{s}".format(**facts), facts["script"]),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "not_exported": one(NOT_EXPORTED.format(**facts)),
        "argument": one(ARGUMENT.format(**facts)),
        "swapped": one(SWAPPED.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "{v}={v} sh {d}/{s}".format(**facts),
        "{v}={w} sh {d}/{s} {w}".format(**facts),
        "{v}={w} sh {d}/{s} && : > {d}/{s}".format(**facts),
        "cd {d} && {v}={w} sh {s}; : > {o}".format(**facts),
    )


FAMILY = Family(
    name="environment",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, NOT_EXPORTED, ARGUMENT, SWAPPED),
)
