"""What a body that does not fit its model is answered."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.errors import InvalidRequest


def refusal(operation: str, location: Sequence[int | str], message: str) -> InvalidRequest:
    """Of the first thing that is wrong, as the schema library says it: where (first of all in which
    part of the request), and what."""
    place, *names = location or ("body",)
    field = ".".join(str(name) for name in names)
    return InvalidRequest(
        "the request is refused",
        operation=operation,
        object=f"field {field}" if field else str(place),
        cause=message,
    )
