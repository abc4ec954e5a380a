"""Every request of the API as a value. No I/O here.

The synchronous and the asynchronous client both carry out these values, so the protocol is
written down once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from sandboxd.client._call import Call, decoded, encoded, given, items, label_pairs, nothing, target
from sandboxd.client.types import (
    DaemonInfo,
    ForkOptions,
    SandboxInfo,
    SandboxMetrics,
    SandboxStats,
    lease_id_of,
)
from sandboxd.protocol import (
    CONTENT_TYPE_JSON,
)

T = TypeVar("T")

# The daemon


def daemon_info() -> Call[DaemonInfo]:
    return Call(
        "get info", "daemon", "GET", target("info"), lambda b: DaemonInfo.from_json(decoded(b))
    )


def health() -> Call[None]:
    return Call("check health", "daemon", "GET", target("health"), nothing)


# Sandboxes


def create_sandbox(
    options: ForkOptions, *, image: str | None = None, template: str | None = None
) -> Call[SandboxInfo]:
    """Of an image, or of a template; of neither: of the daemon's own choice."""
    body = new_sandbox(options, image, template)
    return Call(
        "create sandbox",
        f"from {template or f'image {image}'}",
        "POST",
        target("sandboxes"),
        lambda b: SandboxInfo.from_json(decoded(b)),
        encoded(body),
        CONTENT_TYPE_JSON,
    )


def new_sandbox(options: ForkOptions, image: str | None, template: str | None) -> dict[str, object]:
    return given(image=image, template=template) | sandbox_options(options)


def sandbox_options(options: ForkOptions) -> dict[str, object]:
    """Fields of a body: what may be said of any new sandbox."""
    limits = given(
        memory_bytes=options.get("memory_bytes"),
        pids=options.get("pids"),
        cpu_cores=options.get("cpu_cores"),
        disk_bytes=options.get("disk_bytes"),
    )
    return given(
        limits=limits or None,
        env=dict(options.get("envs") or {}) or None,
        cwd=options.get("cwd"),
        user=options.get("user"),
        hostname=options.get("hostname"),
        ttl_s=options.get("timeout"),
        labels=dict(options.get("metadata") or {}) or None,
        lease=lease_id_of(options.get("lease")),
    )


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a list, and where the next part begins."""

    entries: list[T]
    next: str | None


def list_sandboxes(
    metadata: Mapping[str, str] | None, hostname: str | None, after: str | None
) -> Call[Page[SandboxInfo]]:
    def parse(body: bytes) -> Page[SandboxInfo]:
        found = [SandboxInfo.from_json(item) for item in items(body, "sandboxes")]
        return Page(found, decoded(body).get("next"))

    path = target("sandboxes", label=label_pairs(metadata), hostname=hostname, after=after)
    return Call("list sandboxes", "daemon", "GET", path, parse)


def list_stats(
    metadata: Mapping[str, str] | None, lease: str | None, after: str | None
) -> Call[Page[SandboxStats]]:
    def parse(body: bytes) -> Page[SandboxStats]:
        found = [SandboxStats.from_json(item) for item in items(body, "sandboxes")]
        return Page(found, decoded(body).get("next"))

    path = target("stats", label=label_pairs(metadata), lease=lease, after=after)
    return Call("list stats", "daemon", "GET", path, parse)


def follow_events(
    after: int | None, sandbox_id: str | None, metadata: Mapping[str, str] | None, *, wait: bool
) -> Call[None]:
    path = target(
        "events",
        after=after,
        sandbox=sandbox_id,
        label=label_pairs(metadata),
        wait=None if wait else "false",
    )
    return Call("follow events", sandbox_id or "daemon", "GET", path, nothing)


def get_sandbox(sandbox_id: str) -> Call[SandboxInfo]:
    return Call(
        "get sandbox",
        sandbox_id,
        "GET",
        target("sandboxes", sandbox_id),
        lambda b: SandboxInfo.from_json(decoded(b)),
    )


def kill_sandbox(sandbox_id: str) -> Call[None]:
    return Call("kill sandbox", sandbox_id, "DELETE", target("sandboxes", sandbox_id), nothing)


def set_ttl(sandbox_id: str, ttl_s: float | None) -> Call[None]:
    return Call(
        "set time to live",
        sandbox_id,
        "POST",
        target("sandboxes", sandbox_id, "ttl"),
        nothing,
        encoded({"ttl_s": ttl_s}),
        CONTENT_TYPE_JSON,
    )


def pause_sandbox(sandbox_id: str) -> Call[SandboxInfo]:
    return _change("pause", sandbox_id)


def resume_sandbox(sandbox_id: str) -> Call[SandboxInfo]:
    return _change("resume", sandbox_id)


def _change(verb: str, sandbox_id: str) -> Call[SandboxInfo]:
    return Call(
        f"{verb} sandbox",
        sandbox_id,
        "POST",
        target("sandboxes", sandbox_id, verb),
        lambda b: SandboxInfo.from_json(decoded(b)),
    )


def connect_port(sandbox_id: str, port: int) -> Call[None]:
    """To be sent as an upgrade."""
    return Call(
        "connect to port",
        f"port {port} of {sandbox_id}",
        "GET",
        target("sandboxes", sandbox_id, "ports", str(port)),
        nothing,
    )


def get_metrics(sandbox_id: str) -> Call[SandboxMetrics]:
    return Call(
        "get metrics",
        sandbox_id,
        "GET",
        target("sandboxes", sandbox_id, "metrics"),
        lambda b: SandboxMetrics.from_json(decoded(b)),
    )
