"""What a name of E2B's clients means here: a template by its id or name, or else an image. Pure."""

from __future__ import annotations

from sandboxd.templates.service import TemplateService
from sandboxd.templates.template import Template

NAME_LABEL = "e2b.name"
"""The label of a template that a snapshot's name is kept in."""
_TAG = ":default"


def find_template(templates: TemplateService, peer_uid: int, name: str) -> Template | None:
    """The template of that id, or the peer's newest of that name, with or without the tag that E2B
    puts behind each. Names of other tenants mean nothing, also to root."""
    bare = name.removesuffix(_TAG)
    visible = templates.store.visible(peer_uid, {})
    for each in visible:
        if each.template_id == bare:
            return each
    own = [each for each in visible if each.record.tenant_uid == peer_uid]
    named = [each for each in own if each.record.labels.get(NAME_LABEL) == bare]
    return max(named, key=lambda each: each.record.created_at, default=None)
