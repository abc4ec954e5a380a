"""Stop one of two running processes, where one name is the beginning of the other."""

from venusrl.tasks import scripts
from venusrl.tasks.draw import Draw
from venusrl.tasks.task import Facts, Family, Steps, one

PROMPT = "stop only the process {a}, then write its name to {o}"
SOLUTION = "pkill -x {a} && echo {a} > {o}"
NOT_EXACT = "pkill {a} && echo {a} > {o}"
PAUSED = "pkill -STOP -x {a} && echo {a} > {o}"
NOT_WRITTEN = "pkill -x {a}"

# A process ends within this many seconds by itself, should the sandbox outlive the task.
LIFETIME_S = 600


def _draw(draw: Draw) -> Facts:
    a, o = draw.words(2)
    return {"d": draw.directory(), "a": a, "b": draw.longer(a), "o": o}


# A process that was just forked bears the shell's name until it has executed its program. No
# sleep in between: this takes a fraction of a millisecond, a sleep a fork more.
_WAIT_STARTED = """started() {
    i=0
    until read -r name < /proc/$!/comm && [ "$name" = "$1" ]; do i=$((i+1)); [ $i -lt 200000 ]; done
}"""


def _setup(facts: Facts) -> str:
    # A process is named after the last part of the path that was executed.
    programs = [f"{facts['d']}/{facts[name]}" for name in ("a", "b")]
    starts = [
        f"{facts['d']}/{facts[name]} {LIFETIME_S} < /dev/null > /dev/null 2>&1 &\n"
        f"started {facts[name]}"
        for name in ("a", "b")
    ]
    copies = [f"cp /bin/sleep {program}" for program in programs]
    return scripts.setup(facts, [facts["d"]], {}, _WAIT_STARTED, *copies, *starts)


def _verify(facts: Facts) -> str:
    # Zombies are gone: they only wait to be reaped. A signalled process needs a moment to end,
    # on a busy machine a long one, during which the signal is seen to be pending.
    running = f"pgrep -r DRSTt -x {facts['a']}"
    ending = "grep -q 'Pnd:.*[1-9a-f]' \"/proc/$p/status\" 2> /dev/null"
    wait = (
        f"i=0; while [ $i -lt 100 ] && p=$({running}) && {{ [ $i -lt 5 ] || {ending}; }}; "
        "do sleep 0.02; i=$((i+1)); done"
    )
    return f"{wait}\n" + scripts.verify(
        f"! {running} > /dev/null",
        # Neither ended nor paused.
        f"pgrep -r DRS -x {facts['b']} > /dev/null",
        scripts.lists(facts["d"], [facts["a"], facts["b"]]),
        # Which process to stop could be guessed; where to write its name could not.
        scripts.holds(facts["o"], facts["a"] + "\n"),
    )


def _solve(facts: Facts) -> Steps:
    return one(SOLUTION.format(**facts))


def _flaws(facts: Facts) -> dict[str, Steps]:
    return {
        "not_exact": one(NOT_EXACT.format(**facts)),
        "paused": one(PAUSED.format(**facts)),
        "not_written": one(NOT_WRITTEN.format(**facts)),
    }


def _near_misses(facts: Facts) -> tuple[str, ...]:
    return (
        "pkill -x {b} && echo {a} > {o}".format(**facts),
        "pkill -x {a} && echo {b} > {o}".format(**facts),
        "pkill -x {a} && pkill -STOP -x {b} && echo {a} > {o}".format(**facts),
        "rm {d}/{a} && echo {a} > {o}".format(**facts),
        "echo {a} > {o}".format(**facts),
    )


FAMILY = Family(
    name="processes",
    max_turns=1,
    prompt=PROMPT,
    draw=_draw,
    setup=_setup,
    verify=_verify,
    solve=_solve,
    flaws=_flaws,
    near_misses=_near_misses,
    templates=(PROMPT, SOLUTION, NOT_EXACT, PAUSED, NOT_WRITTEN),
)
