"""Requests about snapshots, forks and templates, as values. No I/O here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sandboxd.client._call import Call, decoded, encoded, given, items, label_pairs, nothing, target
from sandboxd.client._calls import sandbox_options
from sandboxd.client.types import BuildInfo, ForkOptions, SandboxInfo, TemplateInfo
from sandboxd.protocol import CONTENT_TYPE_JSON, OnExternal


def snapshot_sandbox(
    sandbox_id: str,
    labels: Mapping[str, str] | None,
    on_external: OnExternal,
    lease_id: str | None,
) -> Call[TemplateInfo]:
    return Call(
        "snapshot sandbox",
        sandbox_id,
        "POST",
        target("sandboxes", sandbox_id, "snapshot"),
        lambda b: TemplateInfo.from_json(decoded(b)),
        encoded(given(labels=dict(labels or {}), on_external=on_external, lease=lease_id)),
        CONTENT_TYPE_JSON,
    )


def fork_sandbox(
    sandbox_id: str, count: int, on_external: OnExternal, options: ForkOptions
) -> Call[list[SandboxInfo]]:
    return _fork("sandboxes", sandbox_id, count, options, on_external=on_external)


def fork_template(template_id: str, count: int, options: ForkOptions) -> Call[list[SandboxInfo]]:
    return _fork("templates", template_id, count, options)


def _fork(
    kind: str, name: str, count: int, options: ForkOptions, **more: str
) -> Call[list[SandboxInfo]]:
    return Call(
        "fork",
        name,
        "POST",
        target(kind, name, "fork"),
        lambda b: [SandboxInfo.from_json(item) for item in items(b, "sandboxes")],
        encoded({"count": count, **more, **sandbox_options(options)}),
        CONTENT_TYPE_JSON,
    )


def build_template(
    recipe: Mapping[str, object], labels: Mapping[str, str] | None
) -> Call[TemplateInfo]:
    return Call(
        "build template",
        "recipe",
        "POST",
        target("templates"),
        lambda b: TemplateInfo.from_json(decoded(b)),
        encoded({**recipe, **({"labels": dict(labels)} if labels else {})}),
        CONTENT_TYPE_JSON,
    )


def follow_build(
    recipe: Mapping[str, object], labels: Mapping[str, str] | None
) -> Call[TemplateInfo]:
    return dataclasses.replace(build_template(recipe, labels), target=target("builds"))


def list_builds() -> Call[list[BuildInfo]]:
    return Call(
        "list builds",
        "daemon",
        "GET",
        target("builds"),
        lambda b: [BuildInfo.from_json(item) for item in items(b, "builds")],
    )


def get_build(build_id: str) -> Call[BuildInfo]:
    return Call(
        "get build",
        build_id,
        "GET",
        target("builds", build_id),
        lambda b: BuildInfo.from_json(decoded(b)),
    )


def list_templates(labels: Mapping[str, str] | None) -> Call[list[TemplateInfo]]:
    return Call(
        "list templates",
        "daemon",
        "GET",
        target("templates", label=label_pairs(labels)),
        lambda b: [TemplateInfo.from_json(item) for item in items(b, "templates")],
    )


def get_template(template_id: str) -> Call[TemplateInfo]:
    return Call(
        "get template",
        template_id,
        "GET",
        target("templates", template_id),
        lambda b: TemplateInfo.from_json(decoded(b)),
    )


def remove_template(template_id: str) -> Call[None]:
    return Call("remove template", template_id, "DELETE", target("templates", template_id), nothing)
