"""Find the files of a tree that hold a word."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "list into {o} all files below {d} that contain {x}"
SOLUTION = "grep -rl {x} {d} > {o}"
NOT_BELOW = "grep -l {x} {d} > {o}"
NOT_BELOW_OUTPUT = "grep: {d}: Is a directory\n"
WITH_LINES = "grep -r {x} {d} > {o}"
BY_NAME = "find {d} -name {x} > {o}"
TOP_ONLY = "grep -l {x} {d}/* > {o}"
TOP_ONLY_OUTPUT = "grep: {d}/{g}: Is a directory\n"


def _draw(draw: Draw) -> Facts:
    x, o, g, *names = draw.words(8)
    d = draw.directory()
    # Hits and misses on both levels.
    paths = [f"{d}/{name}" for name in names[:3]] + [f"{d}/{g}/{name}" for name in names[3:]]
    hits = [paths[0], paths[3], *([paths[1]] if draw.rng.random() < 0.5 else [])]
    files = {}
    for path in paths:
        word = draw.word()
        while x in word:
            word = draw.word()
        files[path] = f"{word} {x}" if path in hits else word
    return {
        "d": d,
        "x": x,
        "o": o,
        "g": g,
        "files": "\n".join(f"{path} {text}" for path, text in files.items()),
        "hits": "\n".join(sorted(hits)) + "\n",
    }


def _setup(facts: Facts) -> str:
    pairs = (line.split(" ", 1) for line in facts["files"].split("\n"))
    files = {path: f"{text}\n" for path, text in pairs}
    return scripts.setup(facts, ["{d}/{g}".format(**facts)], files)


def _verify(facts: Facts) -> str:
    # In any order: the tree is walked in the order of its directory entries.
    return scripts.verify(
        scripts.is_file(facts["o"]), scripts.prints(f"sort {facts['o']}", facts["hits"])
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "not_below": one(NOT_BELOW.format(**facts), NOT_BELOW_OUTPUT.format(**facts)),
        "with_lines": one(WITH_LINES.format(**facts)),
        "by_name": one(BY_NAME.format(**facts)),
        "top_only": one(TOP_ONLY.format(**facts), TOP_ONLY_OUTPUT.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "grep -rl {x} {d} | sed 1d > {o}".format(**facts),
        "grep -rl {x} {d} > {o} && echo {d}/{g} >> {o}".format(**facts),
        "grep -rl {x} {d} | sed 's:.*/::' > {o}".format(**facts),
        "grep -rL {x} {d} > {o}".format(**facts),
        "grep -rl {x} {d} > {d}/{o}".format(**facts),
    )


FAMILY = Family(
    name="search",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(*(PROMPT, SOLUTION, NOT_BELOW, WITH_LINES, BY_NAME, TOP_ONLY),),
)
