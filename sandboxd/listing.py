"""Which sandboxes a list has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sandboxd import paging
from sandboxd.errors import InvalidRequest
from sandboxd.lifecycle import State
from sandboxd.sandbox import LiveSandbox

MAX_PAGE = 1000
MAX_LABEL_FILTERS = 64
_OPERATION = "list sandboxes"


@dataclass(frozen=True)
class SandboxFilter:
    """What all of a list have; what is None or empty says nothing."""

    labels: Mapping[str, str] = field(default_factory=dict)
    hostname: str | None = None
    state: State | None = None
    lease: str | None = None

    def matches(self, sandbox: LiveSandbox) -> bool:
        """It is on record, and has all of it."""
        record = sandbox.record
        return (
            record is not None
            and self.labels.items() <= record.labels.items()
            and self.hostname in (None, record.hostname)
            and self.state in (None, sandbox.state)
            and self.lease in (None, record.lease)
        )


def page(
    sandboxes: Iterable[LiveSandbox], wanted: SandboxFilter, limit: int, after: str
) -> tuple[list[LiveSandbox], str | None]:
    """Those that match, the oldest first, and where the next page begins: None at the end."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(
            f"{limit} is out of bounds",
            operation=_OPERATION,
            object="query limit",
            cause=f"it must be between 1 and {MAX_PAGE}",
        )
    found, end = paging.cut(
        (
            ((each.record.created_at, each.sandbox_id), each)
            for each in sandboxes
            if each.record is not None and wanted.matches(each)
        ),
        limit,
        _position(after) if after else None,
    )
    return found, None if end is None else paging.token(end)


def _position(text: str) -> paging.Position:
    try:
        return paging.parse(text)
    except ValueError:
        raise InvalidRequest(
            "not what an earlier page gave",
            operation=_OPERATION,
            object="query after",
            cause=text[:200],
        ) from None


def parse_labels(pairs: Sequence[str], operation: str) -> dict[str, str]:
    """NAME=VALUE pairs of a query."""
    if len(pairs) > MAX_LABEL_FILTERS:
        raise InvalidRequest(
            f"{len(pairs)} labels",
            operation=operation,
            object="query label",
            cause=f"at most {MAX_LABEL_FILTERS}",
        )
    labels = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise InvalidRequest(
                "not NAME=VALUE", operation=operation, object="query label", cause=pair[:200]
            )
        labels[name] = value
    return labels
