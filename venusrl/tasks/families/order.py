"""Two turns: read an order given in words, then carry it out."""

from dataclasses import dataclass

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.families import notes
from venusrl.tasks.task import Facts, Family, Steps

PROMPT = "do in {d} what the note {n} there asks for"

_CANNOT_ACCESS = "chmod: cannot access '{x}': No such file or directory\n"


@dataclass(frozen=True)
class Order:
    """One thing that a note may ask for, in two phrasings.

    Beside the note, {d} holds the files {x} and {other}; {y} does not exist at first.
    """

    notes: tuple[str, ...]
    command: str
    # What is printed when the directory is left out of the command.
    astray_output: str
    # A plausible mistake with the right names, and what it prints.
    mistaken: str
    # What {d} holds in the end, beside the note and {other}.
    names: tuple[str, ...]
    # Checks by path below {d}: text, mode, or a shell condition.
    texts: tuple[tuple[str, str], ...] = ()
    mode: str = "644"
    condition: str = ""
    mistaken_output: str = ""


_KEPT = (("{x}", "{text}"),)

ORDERS: dict[str, Order] = {
    "remove": Order(
        ("{x} is not needed any more", "nobody will miss {x}"),
        "rm {d}/{x}",
        "rm: cannot remove '{x}': No such file or directory\n",
        ": > {d}/{x}",
        (),
    ),
    "copy": Order(
        ("there should be a copy of {x} named {y}", "{x} wants a twin called {y}"),
        "cp {d}/{x} {d}/{y}",
        "cp: cannot stat '{x}': No such file or directory\n",
        "mv {d}/{x} {d}/{y}",
        ("{x}", "{y}"),
        (*_KEPT, ("{y}", "{text}")),
    ),
    "rename": Order(
        ("{x} should have the name {y} instead", "the correct name of {x} would be {y}"),
        "mv {d}/{x} {d}/{y}",
        "mv: cannot stat '{x}': No such file or directory\n",
        "cp {d}/{x} {d}/{y}",
        ("{y}",),
        (("{y}", "{text}"),),
    ),
    "make_directory": Order(
        ("a directory {y} is missing here", "open a folder called {y}"),
        "mkdir {d}/{y}",
        "",
        "touch {d}/{y}",
        ("{x}", "{y}"),
        _KEPT,
        condition="[ -d {d}/{y} ]",
    ),
    "make_file": Order(
        ("an empty file {y} is missing here", "{y} should exist but have no content"),
        "touch {d}/{y}",
        "",
        "mkdir {d}/{y}",
        ("{x}", "{y}"),
        (*_KEPT, ("{y}", "")),
    ),
    "empty": Order(
        ("{x} should stay but lose all its text", "wipe the content of {x} but keep it"),
        "truncate -s 0 {d}/{x}",
        "",
        "rm {d}/{x}",
        ("{x}",),
        (("{x}", ""),),
    ),
    "point": Order(
        (
            "{y} should be a symbolic link that leads to {x}",
            "whoever opens {y} should be led softly to {x}",
        ),
        "ln -s {x} {d}/{y}",
        "",
        "ln -s {y} {d}/{x}",
        ("{x}", "{y}"),
        _KEPT,
        condition='[ "$(readlink {d}/{y})" = {x} ]',
        mistaken_output="ln: failed to create symbolic link '{d}/{x}': File exists\n",
    ),
    "runnable": Order(
        ("everybody should be able to run {x}", "{x} lacks its execute bits"),
        "chmod +x {d}/{x}",
        _CANNOT_ACCESS,
        "chmod +r {d}/{x}",
        ("{x}",),
        _KEPT,
        mode="755",
    ),
    "read_only": Order(
        ("nobody should write to {x}", "{x} must be protected from changes"),
        "chmod -w {d}/{x}",
        _CANNOT_ACCESS,
        "chmod +w {d}/{x}",
        ("{x}",),
        _KEPT,
        mode="444",
    ),
    "private": Order(
        (
            "{x} is nobody's business but the owner's",
            "hide the content of {x} from group and world",
        ),
        "chmod go= {d}/{x}",
        _CANNOT_ACCESS,
        "chmod -w {d}/{x}",
        ("{x}",),
        _KEPT,
        mode="600",
    ),
    "compress": Order(
        ("{x} needs compressing", "squeeze {x} with gnu zip"),
        "gzip {d}/{x}",
        "gzip: {x}: No such file or directory\n",
        "gzip -k {d}/{x}",
        ("{x}.gz",),
        condition='[ "$(gzip -dc {d}/{x}.gz 2>/dev/null; echo .)" = "{text}." ]',
    ),
    "replace": Order(
        ("{x} should say {y} and nothing else", "let the whole text of {x} be {y}"),
        "echo {y} > {d}/{x}",
        "",
        "echo {y} >> {d}/{x}",
        ("{x}",),
        (("{x}", "{y}\n"),),
    ),
    "append": Order(
        ("{x} lacks {y} as its last line", "add the line {y} at the end of {x}"),
        "echo {y} >> {d}/{x}",
        "",
        "echo {y} > {d}/{x}",
        ("{x}",),
        (("{x}", "{text}{y}\n"),),
    ),
    "sort": Order(
        ("the lines of {x} are out of order", "{x} wants its lines from a to z"),
        "sort -o {d}/{x} {d}/{x}",
        "sort: cannot read: {x}: No such file or directory\n",
        "sort {d}/{x}",
        ("{x}",),
        (("{x}", "{sorted}"),),
        mistaken_output="{sorted}",
    ),
    "drop_last": Order(
        ("the last line of {x} is wrong and has to go", "{x} is too long by its final line"),
        "sed -i '$d' {d}/{x}",
        "sed: can't read {x}: No such file or directory\n",
        "sed -i 1d {d}/{x}",
        ("{x}",),
        (("{x}", "{head}"),),
    ),
    "drop_first": Order(
        ("{x} should begin with its second line", "the heading of {x} is one line too many"),
        "sed -i 1d {d}/{x}",
        "sed: can't read {x}: No such file or directory\n",
        "sed -i '$d' {d}/{x}",
        ("{x}",),
        (("{x}", "{tail}"),),
    ),
}


def _draw(draw: Draw) -> Facts:
    n, x, y, other = draw.words(4)
    lines = sorted(draw.words(3), reverse=True)
    facts = {
        "d": draw.directory(),
        "n": n,
        "x": x,
        "y": y,
        "other": other,
        "order": draw.rng.choice(list(ORDERS)),
        "text": "".join(f"{line}\n" for line in lines),
        "sorted": "".join(f"{line}\n" for line in sorted(lines)),
        "head": "".join(f"{line}\n" for line in lines[:-1]),
        "tail": "".join(f"{line}\n" for line in lines[1:]),
        "other_text": draw.text(2),
    }
    note = draw.rng.choice(ORDERS[facts["order"]].notes)
    return {**facts, "note": note.format(**facts) + "\n"}


def _setup(facts: Facts) -> str:
    files = {"{d}/{n}": facts["note"], "{d}/{x}": facts["text"], "{d}/{other}": facts["other_text"]}
    paths = {path.format(**facts): text for path, text in files.items()}
    # Explicit, since the verifier compares modes and the sandbox chooses the umask.
    return scripts.setup(facts, [facts["d"]], paths, f"chmod 644 {' '.join(paths)}")


def _verify(facts: Facts) -> str:
    order = ORDERS[facts["order"]]
    directory = facts["d"]
    names = [name.format(**facts) for name in (*order.names, "{n}", "{other}")]
    checks = [
        scripts.lists(directory, names),
        scripts.holds("{d}/{n}".format(**facts), facts["note"]),
        scripts.holds("{d}/{other}".format(**facts), facts["other_text"]),
    ]
    for name, text in order.texts:
        path = f"{directory}/{name.format(**facts)}"
        checks.append(scripts.holds(path, text.format(**facts)))
    if "{x}" in order.names:
        checks.append(scripts.has_mode("{d}/{x}".format(**facts), order.mode))
    if order.condition:
        checks.append(order.condition.format(**facts))
    return scripts.verify(*checks)


def _solve(facts: Facts) -> Steps:
    return notes.then(facts, ORDERS[facts["order"]].command.format(**facts))


def astray(command: str) -> str:
    """The command with the directory forgotten."""
    return command.replace("{d}/", "")


def _flaws(facts: Facts) -> dict[str, Steps]:
    order = ORDERS[facts["order"]]
    return {
        "astray": notes.then(
            facts, astray(order.command).format(**facts), order.astray_output.format(**facts)
        ),
        "mistaken": notes.then(
            facts, order.mistaken.format(**facts), order.mistaken_output.format(**facts)
        ),
        **notes.unfound(facts),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    order = ORDERS[facts["order"]]
    right = order.command.format(**facts)
    return (
        f"{right}; : > {facts['d']}/{facts['other']}",
        f"{right}; rm {facts['d']}/{facts['n']}",
        f"{right}; : > {facts['d']}/{facts['other']}{facts['n']}",
        astray(order.command).format(**facts),
        order.mistaken.format(**facts),
    )


FAMILY = Family(
    name="order",
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
        *(note for order in ORDERS.values() for note in order.notes),
        *(order.command for order in ORDERS.values()),
        *(order.mistaken for order in ORDERS.values()),
    ),
)
