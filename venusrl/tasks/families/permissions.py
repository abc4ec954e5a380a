"""Set the access mode of the files in a directory, not of the directory."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "give the files in {d} but not {d} itself mode {m}"
SOLUTION = "chmod {m} {d}/*"
RECURSIVE = "chmod -R {m} {d}"
DIRECTORY = "chmod {m} {d}"
EVERYWHERE = "chmod {m} *"

FILES = ("a", "b", "c")


def _draw(draw: Draw) -> Facts:
    a, b, c = draw.words(3)
    return {"d": draw.directory(), "m": draw.mode(), "a": a, "b": b, "c": c}


def _paths(facts: Facts) -> list[str]:
    return [f"{facts['d']}/{facts[name]}" for name in FILES]


def _setup(facts: Facts) -> str:
    # Explicit, since the verifier compares modes and the sandbox chooses the umask.
    return scripts.setup(
        facts,
        [facts["d"]],
        dict.fromkeys(_paths(facts), ""),
        f"chmod u=rwX,go=rX {facts['d']} {' '.join(_paths(facts))}",
    )


def _verify(facts: Facts) -> str:
    listed = " ".join([facts["d"], *_paths(facts)])
    modes = "\n".join(["755", *(facts["m"] for _ in FILES)]) + "\n"
    return scripts.verify(
        scripts.lists(facts["d"], [facts[name] for name in FILES]),
        scripts.prints(f"stat -c %a {listed}", modes),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "recursive": one(RECURSIVE.format(**facts)),
        "directory": one(DIRECTORY.format(**facts)),
        "everywhere": one(EVERYWHERE.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "chmod {m} {d}/{a} {d}/{b}".format(**facts),
        "chmod {m} {d}/* && chmod 777 {d}/{c}".format(**facts),
        "chmod {m} {d}/* && : > {d}/{a}{b} && chmod {m} {d}/{a}{b}".format(**facts),
        "chmod {m} {d}/* && rm {d}/{b}".format(**facts),
    )


FAMILY = Family(
    name="permissions",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, RECURSIVE, DIRECTORY, EVERYWHERE),
)
