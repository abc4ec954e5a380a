"""Which sandboxes a list has, and the pages of E2B's lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote

from sandboxd import paging
from sandboxd.e2b.bodies import started_at, state_of, template_of
from sandboxd.errors import InvalidRequest
from sandboxd.sandbox import LiveSandbox

MAX_PAGE = 100
_MAX_METADATA_FIELDS = 64
_STATES = frozenset({"running", "paused"})


@dataclass(frozen=True)
class SandboxQuery:
    """What a list is asked for."""

    states: frozenset[str] = _STATES
    metadata: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    started_after: datetime | None = None
    newest_first: bool = True
    limit: int = MAX_PAGE
    after: paging.Position | None = None
    """The last of the page before."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> SandboxQuery:
        """From the query of a URL; `InvalidRequest`."""
        states = frozenset(query.get("state", "running,paused").split(","))
        if not states <= _STATES:
            raise _refused("state", "running, paused, or both")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise _refused("order", "asc or desc")
        return cls(
            states=states,
            metadata=_metadata(query.get("metadata", "")),
            template=query.get("template", ""),
            started_after=_started_after(query.get("startedAfter", "")),
            newest_first=order == "desc",
            limit=page_limit(query),
            after=page_token(query),
        )

    def matches(self, sandbox: LiveSandbox) -> bool:
        """It belongs in the list."""
        record = sandbox.record
        return (
            record is not None
            and state_of(sandbox) in self.states
            and self.metadata.items() <= record.labels.items()
            and (not self.template or self.template in (template_of(sandbox), record.image))
            and (self.started_after is None or started_at(record) >= self.started_after)
        )


def page_of(
    sandboxes: Sequence[LiveSandbox], query: SandboxQuery
) -> tuple[list[LiveSandbox], str | None]:
    """The page, and the token of the next one."""
    found, end = paging.cut(
        (
            ((each.record.created_at, each.sandbox_id), each)
            for each in sandboxes
            if each.record is not None and query.matches(each)
        ),
        query.limit,
        query.after,
        newest_first=query.newest_first,
    )
    return found, None if end is None else paging.token(end)


def page_limit(query: Mapping[str, str]) -> int:
    """How many a page has."""
    text = query.get("limit", str(MAX_PAGE))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= 1):
        raise _refused("limit", "a number above 0")
    return min(int(text), MAX_PAGE)


def page_token(query: Mapping[str, str]) -> paging.Position | None:
    """Where the page before ended."""
    text = query.get("nextToken", "")
    try:
        return paging.parse(text) if text else None
    except ValueError:
        raise _refused("nextToken", "not a token that this server gave") from None


def _metadata(text: str) -> dict[str, str]:
    # The client quotes each name and value, and then once more as a query.
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_METADATA_FIELDS)
    except ValueError:
        raise _refused("metadata", f"at most {_MAX_METADATA_FIELDS} pairs") from None
    return {unquote(name): unquote(value) for name, value in pairs}


def _started_after(text: str) -> datetime | None:
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise _refused("startedAfter", "not a time of ISO 8601") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _refused(name: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the query is refused", operation="list", object=f"query {name}", cause=cause
    )
