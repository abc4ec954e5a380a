"""Two turns: read in words who may do what, then set the access mode."""

from itertools import product

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.families import notes
from venusrl.tasks.task import SPLITS, Facts, Family, Split, Steps

PROMPT = "set the access that the note {n} in {d} grants"
NOTE = "{f}: {owner}, {group}, {others}"
SOLUTION = "chmod {m} {d}/{f}"
ASTRAY = "chmod {m} {f}"
ASTRAY_OUTPUT = "chmod: cannot access '{f}': No such file or directory\n"
ON_NOTE = "chmod {m} {d}/{n}"

# Each class has words of its own for the digits, so that nothing short translates a note.
OWNER = {"7": "yours entirely", "6": "yours to edit", "5": "yours to start", "4": "yours to see"}
GROUP = {"6": "friends change it", "5": "friends use it", "4": "friends read it", "0": "no friends"}
OTHERS = {"6": "guests write too", "5": "guests launch it", "4": "guests look", "0": "no guests"}
CLASSES = (OWNER, GROUP, OTHERS)


def modes(split: Split) -> list[str]:
    """The modes of ``split``: a third of all, with every digit in every place in each split."""
    return [
        "".join(digits)
        for digits in product(*CLASSES)
        if sum(list(words).index(digit) for words, digit in zip(CLASSES, digits, strict=True))
        % len(SPLITS)
        == SPLITS.index(split)
    ]


def _draw(draw: Draw) -> Facts:
    n, f, other = draw.words(3)
    m = draw.rng.choice(modes(draw.split))
    owner, group, others = (words[digit] for words, digit in zip(CLASSES, m, strict=True))
    words = {"owner": owner, "group": group, "others": others}
    facts = {"d": draw.directory(), "n": n, "f": f, "other": other, "m": m, **words}
    return {**facts, "note": NOTE.format(**facts) + "\n"}


def _setup(facts: Facts) -> str:
    files = {"{d}/{n}": facts["note"], "{d}/{f}": "", "{d}/{other}": ""}
    paths = {path.format(**facts): text for path, text in files.items()}
    # 711 is no mode that a note can grant, so doing nothing is never right.
    return scripts.setup(facts, [facts["d"]], paths, f"chmod 711 {' '.join(paths)}")


def _verify(facts: Facts) -> str:
    paths = "{d}/{n} {d}/{f} {d}/{other}".format(**facts)
    return scripts.verify(
        scripts.lists(facts["d"], [facts[name] for name in ("n", "f", "other")]),
        scripts.prints(f"stat -c %a {paths}", f"711\n{facts['m']}\n711\n"),
    )


def _solve(facts: Facts) -> Steps:
    return notes.then(facts, SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    m = facts["m"]
    flaws = {
        "astray": notes.then(facts, ASTRAY.format(**facts), ASTRAY_OUTPUT.format(**facts)),
        "on_note": notes.then(facts, ON_NOTE.format(**facts)),
        **notes.unfound(facts),
    }
    if m[1] != m[2]:
        swapped = {**facts, "m": m[0] + m[2] + m[1]}
        flaws["swapped"] = notes.then(facts, SOLUTION.format(**swapped))
    return flaws


def _near_misses(facts: Facts) -> tuple[str, ...]:
    m = facts["m"]
    others = [f"{m[0]}{m[1]}{'1' if m[2] == '0' else '0'}", f"{m[0]}1{m[2]}", f"0{m[1]}{m[2]}"]
    return (
        *(SOLUTION.format(**{**facts, "m": other}) for other in others),
        "chmod {m} {d}/{f} {d}/{other}".format(**facts),
        "chmod {m} {d}/{f} && rm {d}/{other}".format(**facts),
    )


FAMILY = Family(
    name="grant",
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
        *(phrase for words in CLASSES for phrase in words.values()),
        *(SOLUTION, ASTRAY, ON_NOTE),
    ),
)
