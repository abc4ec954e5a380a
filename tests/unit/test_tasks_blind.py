"""How much of a two-turn family a policy can pass that never sees a note.

It may know every phrase and every command, and pack as many translations into its two commands
as fit. The bound is generous to it: it has the shortest names and paths that exist, keys that
tell a phrase from all others in the fewest characters, and the shell's tersest construct.
"""

from venusrl.tasks import MAX_COMMAND_CHARACTERS
from venusrl.tasks.families import grant, order, question

# The directory's and the note's shortest names, and one file named in the note, as "$1".
READING = "cd dare;set -- $(cat nami);"
CHOOSING = "case $* in esac"


def _shortest_key(phrase: str, others: list[str]) -> int:
    """Length of the shortest text that is in ``phrase`` but in none of the others."""
    for length in range(1, len(phrase) + 1):
        for start in range(len(phrase) - length + 1):
            key = phrase[start : start + length]
            if " " not in key and "{" not in key and not any(key in other for other in others):
                return length
    return len(phrase)


def _rules_that_fit(phrases: dict[str, str], room: int) -> int:
    """How many phrases a policy can translate, cheapest first, in ``room`` characters."""
    costs = sorted(
        _shortest_key(phrase, [other for other in phrases if other != phrase])
        + len("**);;")
        + len(command.replace("{d}/", "").replace("{x}", "$1").replace("{y}", "$2"))
        for phrase, command in phrases.items()
    )
    fitting = 0
    # The last rule needs no closing ";;".
    while fitting < len(costs) and sum(costs[: fitting + 1]) - len(";;") <= room:
        fitting += 1
    return fitting


def _blind_share(phrases: dict[str, str]) -> float:
    frame = len(READING) + len(CHOOSING)
    # Either each turn has rules of its own, or both write one script, which the second runs.
    apart = 2 * _rules_that_fit(phrases, MAX_COMMAND_CHARACTERS - frame)
    writing = len("echo ''>f") + len("echo ''>>f;. ./f")
    together = _rules_that_fit(phrases, 2 * MAX_COMMAND_CHARACTERS - frame - writing)
    assert max(apart, together) >= 1, "the bound should leave room for something"
    return max(apart, together) / len(phrases)


def test_orders_cannot_be_packed_into_blind_commands() -> None:
    phrases = {note: each.command for each in order.ORDERS.values() for note in each.notes}
    assert len(phrases) == sum(len(each.notes) for each in order.ORDERS.values())
    assert _blind_share(phrases) <= 0.10


def test_questions_cannot_be_packed_into_blind_commands() -> None:
    phrases = {
        note: each.command + ">miro" for each in question.QUESTIONS.values() for note in each.notes
    }
    assert len(phrases) == sum(len(each.notes) for each in question.QUESTIONS.values())
    assert _blind_share(phrases) <= 0.10


def test_grants_cannot_be_packed_into_blind_commands() -> None:
    # One sed rule for each phrase of a class; a mode needs a phrase of all three.
    frame = "cd dare;chmod $(sed '' nami|tr -cd 0-9) miro"
    rule = "s/ab/6/;"
    rules = 2 * (MAX_COMMAND_CHARACTERS - len(frame)) // len(rule)
    phrases = [len(words) for words in grant.CLASSES]
    # Best split of the rules over the three classes, and never worse than one guessed mode.
    best = max(
        one * two * (rules - one - two)
        for one in range(rules + 1)
        for two in range(rules - one + 1)
    )
    assert max(best / (phrases[0] * phrases[1] * phrases[2]), 1 / 21) <= 0.10
