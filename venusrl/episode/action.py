"""What the policy's text of one turn asks for. Pure.

Forgiving about wrapping (chat models like to fence a command or to think aloud first), strict
about the command itself: one line, bounded, valid text.
"""

import re
from dataclasses import dataclass

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"\A```[a-z]*\n(.*?)\n?```\Z", re.DOTALL)


@dataclass(frozen=True)
class Command:
    text: str


@dataclass(frozen=True)
class Finish:
    """The policy ends the episode."""


@dataclass(frozen=True)
class Malformed:
    reason: str


Action = Command | Finish | Malformed


def parse_action(text: str, *, complete: bool, max_characters: int) -> Action:
    """The action in ``text``; ``complete`` says that the policy ended its turn itself."""
    if not complete:
        return Malformed("the command does not end")
    text = _THOUGHT.sub("", text).strip()
    fenced = _FENCED.match(text)
    if fenced:
        text = fenced.group(1).strip()
    if not text:
        return Finish()
    if len(text) > max_characters:
        return Malformed(f"the command is longer than {max_characters} characters")
    if "\n" in text:
        return Malformed("more than one line")
    if "\0" in text or "\ufffd" in text:
        return Malformed("the command is not text")
    return Command(text)
