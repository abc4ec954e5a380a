"""Pack a directory into a compressed archive, with member names that begin at that directory."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "pack {a} from {d} into {o}.tgz with names from {a} on"
SOLUTION = "tar -czf {o}.tgz -C {d} {a}"
NOT_COMPRESSED = "tar -cf {o}.tgz -C {d} {a}"
WHOLE_PATH = "tar -czf {o}.tgz {d}/{a}"
INSIDE = "tar -czf {o}.tgz -C {d}/{a} ."


def _draw(draw: Draw) -> Facts:
    a, o, f, g = draw.words(4)
    return {
        "d": draw.directory(),
        "a": a,
        "o": o,
        "f": f,
        "g": g,
        "f_text": draw.text(2),
        "g_text": draw.text(1),
    }


def _setup(facts: Facts) -> str:
    files = {"{d}/{a}/{f}": facts["f_text"], "{d}/{a}/{g}": facts["g_text"]}
    paths = {path.format(**facts): text for path, text in files.items()}
    return scripts.setup(facts, ["{d}/{a}".format(**facts)], paths)


def _verify(facts: Facts) -> str:
    archive = f"{facts['o']}.tgz"
    members = ["", *sorted([facts["f"], facts["g"]])]
    listing = "".join(f"{facts['a']}/{name}\n" for name in members)
    checks = [scripts.is_file(archive), scripts.prints(f"tar -tzf {archive} | sort", listing)]
    for name, text in ((facts["f"], facts["f_text"]), (facts["g"], facts["g_text"])):
        member = f"{facts['a']}/{name}"
        checks.append(scripts.prints(f"tar -xzOf {archive} {member}", text))
        checks.append(scripts.holds(f"{facts['d']}/{member}", text))
    return scripts.verify(*checks)


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "not_compressed": one(NOT_COMPRESSED.format(**facts)),
        "whole_path": one(WHOLE_PATH.format(**facts)),
        "inside": one(INSIDE.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "tar -czf {o}.tgz -C {d} {a}/{f}".format(**facts),
        "tar -czf {o}.tgz --exclude {g} -C {d} {a}".format(**facts),
        "tar -czf {o} -C {d} {a}".format(**facts),
        "tar -czf {o}.tgz -C {d} {a} && rm -r {d}/{a}".format(**facts),
        "mv {d}/{a} {a} && : > {a}/{f} && tar -czf {o}.tgz {a}".format(**facts),
    )


FAMILY = Family(
    name="archives",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, NOT_COMPRESSED, WHOLE_PATH, INSIDE),
)
