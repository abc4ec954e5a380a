"""The fixed text of all prompts, notes, commands and messages: what is never a name.

The policy's tokenizer makes each of these one token. They are read off the templates, so a new
family needs no list of its own.
"""

import string
from collections.abc import Iterable

from venusrl.tasks.families import FAMILIES


def literals(templates: Iterable[str]) -> tuple[str, ...]:
    """The text between the fields of ``templates``, each piece once, in order."""
    pieces: dict[str, None] = {}
    for template in templates:
        for text, _field, _format, _conversion in string.Formatter().parse(template):
            for line in text.splitlines():
                if len(line.strip()) > 1:
                    pieces[line.strip()] = None
    return tuple(pieces)


FIXED_FRAGMENTS: tuple[str, ...] = literals(
    template for family in FAMILIES.values() for template in family.templates
)
