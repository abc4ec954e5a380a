"""What the two-turn families share: the first turn reads a note, the second acts on it.

Why the second command needs the first one's output, also for a perfect policy:

- A note is an English sentence; what to do depends on its meaning, one of at least sixteen
  equally likely commands, and nothing in the prompt says which. A policy that does not see the
  note (observations masked) and guesses is right once in sixteen at best.
- The shell cannot pass the note on by itself. Command substitution can carry the *names* in a
  note from one place to another, but which command to run is a translation from English that no
  program in the sandbox does. There are at least thirty phrases, and two commands of at most
  ``MAX_COMMAND_CHARACTERS`` have room to translate three of them. A note is no shell script
  either.
- A verifier wants the effect of the right command and nothing else changed, so doing several
  things at once fails too.

tests/unit/test_tasks_blind.py computes that bound, tests/rl/test_tasks_in_sandbox.py tries it.
"""

from collections.abc import Mapping

from venusrl.tasks.task import Facts, Step, Steps

READ = "cat {d}/{n}"
UNFOUND_NOTE = "cat {n}"
UNFOUND_NOTE_OUTPUT = "cat: {n}: No such file or directory\n"

TEMPLATES = (READ, UNFOUND_NOTE, UNFOUND_NOTE_OUTPUT)


def then(facts: Facts, command: str, observation: str = "") -> Steps:
    """Read the note, then run ``command``."""
    return (Step(READ.format(**facts), facts["note"]), Step(command, observation))


def unfound(facts: Facts) -> Mapping[str, Steps]:
    """The mistake of looking for the note in the wrong place, noticed too late."""
    missed = Step(UNFOUND_NOTE.format(**facts), UNFOUND_NOTE_OUTPUT.format(**facts))
    return {"unfound_note": (missed, Step(READ.format(**facts), facts["note"]))}
