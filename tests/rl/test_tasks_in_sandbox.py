"""Tasks for real: demonstrations, mistakes, near misses, constants and blind play.

Everything runs in a sandbox of a real daemon. A verdict other than 0 or 1, or a word printed by
setup or verifier, is a broken task and fails the test that meets it.
"""

from collections.abc import Callable, Iterator, Sequence

import pytest

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess
from tests.support.task_runs import Case, Outcome, run_cases
from venusrl.tasks import FAMILIES, MAX_COMMAND_CHARACTERS, Task, generate
from venusrl.tasks.families import order, question
from venusrl.tasks.task import Steps

pytestmark = [pytest.mark.rl, pytest.mark.timeout(280)]

Play = Callable[[Sequence[tuple[Task, tuple[str, ...]]]], list[Outcome]]


@pytest.fixture(scope="module")
def play(daemon: DaemonProcess) -> Iterator[Play]:
    """Plays commands on tasks and returns what happened."""
    with Sandbox.create(socket=daemon.socket, timeout=900) as sandbox:

        def run(plays: Sequence[tuple[Task, tuple[str, ...]]]) -> list[Outcome]:
            cases = [Case(task.setup, commands, task.verify) for task, commands in plays]
            outcomes = run_cases(sandbox, cases)
            for (task, commands), outcome in zip(plays, outcomes, strict=True):
                about = f"{task.task_id} after {commands}: {outcome}"
                assert (outcome.setup_exit, outcome.setup_output) == (0, b""), about
                assert outcome.verify_exit in (0, 1), about
                assert not outcome.verify_output, about
            return outcomes

        yield run


def _commands(steps: Steps) -> tuple[str, ...]:
    return tuple(step.command for step in steps)


def _one_of_each(family: str, fact: str) -> list[Task]:
    """A task for each value that ``fact`` can have."""
    found: dict[str, Task] = {}
    for task in generate("held_out", 41, 800, [family]):
        found.setdefault(task.facts[fact], task)
    return list(found.values())


def _every_kind() -> list[Task]:
    """Tasks of all families, and of all that a note can ask for."""
    return [
        *generate("held_out", 43, len(FAMILIES)),
        *_one_of_each("order", "order"),
        *_one_of_each("question", "question"),
    ]


def _assert_as_shown(task: Task, steps: Steps, outcome: Outcome) -> None:
    expected = tuple(step.observation.encode() for step in steps)
    assert outcome.observations == expected, f"{task.task_id}: {task.prompt!r}"


def test_doing_nothing_never_passes(play: Play) -> None:
    tasks = generate("held_out", 47, 3 * len(FAMILIES))
    assert not any(outcome.verify_exit == 0 for outcome in play([(task, ()) for task in tasks]))


def test_demonstrations_solve_their_tasks_and_print_what_they_say(play: Play) -> None:
    tasks = [
        *_every_kind(),
        *generate("warmup", 43, len(FAMILIES)),
        *generate("train", 43, len(FAMILIES)),
    ]
    shown = [FAMILIES[task.family].solve(task.facts) for task in tasks]
    outcomes = play([(t, _commands(s)) for t, s in zip(tasks, shown, strict=True)])
    for task, steps, outcome in zip(tasks, shown, outcomes, strict=True):
        _assert_as_shown(task, steps, outcome)
        assert outcome.verify_exit == 0, f"{task.task_id}: {_commands(steps)} does not solve it"


def test_mistakes_fail_and_print_what_they_say(play: Play) -> None:
    plays = [
        (task, kind, steps)
        for task in _every_kind()
        for kind, steps in FAMILIES[task.family].flaws(task.facts).items()
    ]
    outcomes = play([(task, _commands(steps)) for task, _, steps in plays])
    for (task, kind, steps), outcome in zip(plays, outcomes, strict=True):
        _assert_as_shown(task, steps, outcome)
        assert outcome.verify_exit == 1, f"{task.task_id}: the mistake {kind} passes"


def test_verifiers_reject_near_misses(play: Play) -> None:
    plays = []
    for task in [*generate("held_out", 43, len(FAMILIES)), *_one_of_each("order", "order")]:
        near = FAMILIES[task.family].near_misses(task.facts)
        assert len(near) >= 3
        plays += [(task, (script,)) for script in near]
    for (task, scripts), outcome in zip(plays, play(plays), strict=True):
        assert outcome.verify_exit == 1, f"{task.task_id}: {scripts} passes"


CONSTANTS = (
    "chmod -R 755 .",
    "chmod 640 */*/*",
    "touch a; mkdir -p b",
    "grep -rc . . > out; sort */*/* > sorted",
    "for f in */*/*; do sh $f; done",
    "for f in */*/*; do sort -o $f $f; gzip -k $f; mv $f .; done",
    "tar -czf a.tgz */*",
    "pkill -x sleep; rm -rf *",
)


def test_no_constant_command_passes(play: Play) -> None:
    plays = []
    for family in FAMILIES:
        tasks = generate("held_out", 53, 6, [family])
        plays += [(task, (constant,)) for constant in CONSTANTS for task in tasks[:3]]
        # What solves one task is a constant for the others.
        solutions = [_commands(FAMILIES[family].solve(task.facts)) for task in tasks]
        plays += [(tasks[(i + 1) % len(tasks)], each) for i, each in enumerate(solutions)]
    for (task, commands), outcome in zip(plays, play(plays), strict=True):
        assert outcome.verify_exit == 1, f"{task.task_id}: {commands} passes"


def _smuggled(task: Task, note: str, command: str) -> tuple[str, ...]:
    """``command`` with the note's words in place of names: what needs no eyes."""
    places = {word: f"${i}" for i, word in enumerate(note.replace("?", " ?").split(), start=1)}
    filled = command.replace("{d}/", "").replace("{o}", task.facts.get("o", ""))
    for field in ("{x}", "{y}"):
        filled = filled.replace(field, places.get(field, places.get(field + ":", "$1")))
    read = f"cd {task.facts['d']};set -- $(tr -d '?:,' < {task.facts['n']})"
    return (f"{read};{filled}",)


@pytest.mark.parametrize("family", ["order", "question"])
def test_a_note_cannot_be_carried_out_unread(play: Play, family: str) -> None:
    """Every command there is, its names taken from the note by the shell: right once in K."""
    if family == "order":
        kinds = {key: (each.notes[0], each.command) for key, each in order.ORDERS.items()}
    else:
        kinds = {
            key: (each.notes[0], each.command + " > {o}")
            for key, each in question.QUESTIONS.items()
        }
    # To the policy's favour: of each kind only the phrasing that its command expects.
    tasks = {}
    for task in generate("held_out", 59, 1500, [family]):
        kind = task.facts[family]
        if task.facts["note"] == kinds[kind][0].format(**task.facts) + "\n":
            tasks.setdefault(kind, task)
    assert tasks.keys() == kinds.keys()
    plays = [
        (kind, (task, _smuggled(task, note, command)))
        for kind, (note, command) in kinds.items()
        for task in tasks.values()
    ]
    passed = dict.fromkeys(kinds, 0)
    for (kind, _), outcome in zip(plays, play([each for _, each in plays]), strict=True):
        passed[kind] += outcome.verify_exit == 0
    # Nearly each is right for its own kind, so they are real commands, and for no other.
    assert sum(passed.values()) >= 0.8 * len(tasks)
    assert max(passed.values()) <= 1, passed


def test_guessed_modes_pass_a_tenth_at_most(play: Play) -> None:
    tasks = _one_of_each("grant", "m")
    for guess in ("640", "700"):
        outcomes = play(
            [
                (t, ("cd {d};chmod {g} $(cut -d: -f1 {n})".format(**{**t.facts, "g": guess}),))
                for t in tasks
            ]
        )
        assert sum(o.verify_exit == 0 for o in outcomes) <= 0.1 * len(tasks)


NOTE_AS_SCRIPT = ("sh {d}/{n}", "cd {d};sh {n}", "cd {d};. ./{n}", "cd {d};eval $(cat {n})")


@pytest.mark.parametrize("family", ["order", "grant", "question"])
def test_notes_are_no_shell_scripts(play: Play, family: str) -> None:
    tasks = generate("held_out", 61, 6, [family])
    for form in NOTE_AS_SCRIPT:
        command = [(task, (form.format(**task.facts),)) for task in tasks]
        assert all(len(commands[0]) <= MAX_COMMAND_CHARACTERS for _, commands in command)
        assert not any(outcome.verify_exit == 0 for outcome in play(command))


def test_one_episode_of_each_family_through_the_daemon(daemon: DaemonProcess) -> None:
    """As the driver above, but turn by turn, as an episode goes."""
    for task in generate("held_out", 67, len(FAMILIES)):
        with Sandbox.create(socket=daemon.socket) as sandbox:
            sandbox.files.make_dir("/root/work")

            def shell(script: str, sandbox: Sandbox = sandbox) -> tuple[int, bytes]:
                argv = ["/bin/sh", "-c", 'exec /bin/sh -c "$1" 2>&1', "/bin/sh", script]
                done = sandbox.commands.run(argv, cwd="/root/work", check=False)
                return done.exit_code, done.stdout_bytes

            assert shell(task.setup) == (0, b"")
            assert shell(task.verify) == (1, b"")
            for step in FAMILIES[task.family].solve(task.facts):
                assert shell(step.command)[1] == step.observation.encode()
            assert shell(task.verify) == (0, b""), task.task_id
