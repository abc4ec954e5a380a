"""Move a file to another directory under another name."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "move {d}/{a} to {e}/{b}"
SOLUTION = "mv {d}/{a} {e}/{b}"
COPIED = "cp {d}/{a} {e}/{b}"
OLD_NAME = "mv {d}/{a} {e}"
NO_DIRECTORY = "mv {a} {e}/{b}"
NO_DIRECTORY_OUTPUT = "mv: cannot stat '{a}': No such file or directory\n"


def _draw(draw: Draw) -> Facts:
    a, b, e, other = draw.words(4)
    return {
        "d": draw.directory(),
        "a": a,
        "b": b,
        "e": e,
        "other": other,
        "text": draw.text(2),
        "other_text": draw.text(1),
    }


def _setup(facts: Facts) -> str:
    files = {"{d}/{a}": facts["text"], "{d}/{other}": facts["other_text"]}
    paths = {path.format(**facts): text for path, text in files.items()}
    return scripts.setup(facts, [facts["d"], facts["e"]], paths)


def _verify(facts: Facts) -> str:
    return scripts.verify(
        scripts.lists(facts["d"], [facts["other"]]),
        scripts.lists(facts["e"], [facts["b"]]),
        scripts.holds("{e}/{b}".format(**facts), facts["text"]),
        scripts.holds("{d}/{other}".format(**facts), facts["other_text"]),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "copied": one(COPIED.format(**facts)),
        "old_name": one(OLD_NAME.format(**facts)),
        "no_directory": one(NO_DIRECTORY.format(**facts), NO_DIRECTORY_OUTPUT.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "mv {d}/{other} {e}/{b}".format(**facts),
        "mv {d}/{a} {e}/{b} && rm {d}/{other}".format(**facts),
        "mv {d}/{a} {e}/{b} && : > {e}/{b}".format(**facts),
        "mv {d}/{a} {d}/{b}".format(**facts),
        "ln -s $PWD/{d}/{a} {e}/{b}".format(**facts),
    )


FAMILY = Family(
    name="move",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, COPIED, OLD_NAME, NO_DIRECTORY),
)
