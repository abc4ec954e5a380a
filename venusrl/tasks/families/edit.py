"""Replace a word everywhere in a file."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "change every {x} to {y} in {d}/{f}"
SOLUTION = "sed -i s/{x}/{y}/g {d}/{f}"
FIRST_ONLY = "sed -i s/{x}/{y}/ {d}/{f}"
TO_SCREEN = "sed s/{x}/{y}/g {d}/{f}"
SWAPPED = "sed -i s/{y}/{x}/g {d}/{f}"


def _draw(draw: Draw) -> Facts:
    x, y, f, first, second, third = draw.words(6)
    # The new word stands nowhere yet: only the prompt knows it.
    # The first line repeats the word, so that replacing once a line is not enough.
    lines = [f"{x} {first} {x}", f"{second} {x}", f"{third} {first}"]
    draw.rng.shuffle(lines)
    return {"d": draw.directory(), "f": f, "x": x, "y": y, "text": "\n".join(lines) + "\n"}


def _setup(facts: Facts) -> str:
    return scripts.setup(facts, [facts["d"]], {"{d}/{f}".format(**facts): facts["text"]})


def _edited(facts: Facts) -> str:
    return facts["text"].replace(facts["x"], facts["y"])


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts["f"]]),
        scripts.holds("{d}/{f}".format(**facts), _edited(facts)),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "first_only": one(FIRST_ONLY.format(**facts)),
        "to_screen": one(TO_SCREEN.format(**facts), _edited(facts)),
        "swapped": one(SWAPPED.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "sed -i '1s/{x}/{y}/g' {d}/{f}".format(**facts),
        "sed -i 's/{x}/{y}/g;$d' {d}/{f}".format(**facts),
        "sed -i s/{x}//g {d}/{f}".format(**facts),
        "sed -i.bak s/{x}/{y}/g {d}/{f}".format(**facts),
    )


FAMILY = Family(
    name="edit",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, FIRST_ONLY, TO_SCREEN, SWAPPED),
)
