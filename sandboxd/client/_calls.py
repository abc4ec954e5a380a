"""Every request of the API as a value: what to send, and how to read the answer. No I/O here.

The synchronous and the asynchronous client both carry out these values, so the protocol is
written down once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from sandboxd.client.types import (
    DaemonInfo,
    FileEntry,
    FileListing,
    ImageInfo,
    SandboxInfo,
    SandboxMetrics,
)
from sandboxd.errors import InternalError, InvalidRequest, VenusError, error_from_json
from sandboxd.protocol import (
    API_PREFIX,
    CONTENT_TYPE_BYTES,
    CONTENT_TYPE_FRAMES,
    CONTENT_TYPE_JSON,
    MAX_INLINE_STDIN_BYTES,
    FrameType,
    StdinMode,
    encode_frame,
    encode_json_frame,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `operation` and `object` name it in errors."""

    operation: str
    object: str
    method: str
    target: str
    parse: Callable[[bytes], T]
    body: bytes = b""
    content_type: str | None = None

    def error(self, status: int, body: bytes) -> VenusError:
        """The exception for an answer that is not a success."""
        try:
            value: Any = json.loads(body)
        except ValueError:
            value = None
        error = error_from_json(value, fallback=f"the answer was HTTP {status}")
        # The daemon names what it did; an answer from elsewhere gets what was asked for.
        error.operation = error.operation or self.operation
        error.object = error.object or self.object
        return error


def _target(*parts: str, **query: str | int | None) -> str:
    path = "/".join([API_PREFIX, *(quote(part, safe="") for part in parts)])
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise InternalError(
            "the daemon's answer is not JSON", operation="read answer", cause=repr(body[:100])
        ) from error


def _items(body: bytes, key: str) -> list[Any]:
    value = _json(body)
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        raise InternalError(
            f"the daemon's answer has no list {key!r}",
            operation="read answer",
            cause=repr(body[:100]),
        )
    items: list[Any] = value[key]
    return items


def _nothing(_body: bytes) -> None:
    return None


def _given(**fields: object) -> dict[str, object]:
    """Without what the caller left to the daemon's default."""
    return {name: value for name, value in fields.items() if value is not None}


def _encoded(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# The daemon


def daemon_info() -> Call[DaemonInfo]:
    return Call(
        "get info", "daemon", "GET", _target("info"), lambda b: DaemonInfo.from_json(_json(b))
    )


def health() -> Call[None]:
    return Call("check health", "daemon", "GET", _target("health"), _nothing)


# Sandboxes


def create_sandbox(
    *,
    image: str,
    memory_bytes: int | None = None,
    pids: int | None = None,
    cpu_cores: float | None = None,
    disk_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    hostname: str | None = None,
    ttl_s: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Call[SandboxInfo]:
    limits = _given(
        memory_bytes=memory_bytes, pids=pids, cpu_cores=cpu_cores, disk_bytes=disk_bytes
    )
    body = _given(
        image=image,
        limits=limits or None,
        env=dict(env) if env else None,
        cwd=cwd,
        user=user,
        hostname=hostname,
        ttl_s=ttl_s,
        labels=dict(labels) if labels else None,
    )
    return Call(
        "create sandbox",
        f"from image {image}",
        "POST",
        _target("sandboxes"),
        lambda b: SandboxInfo.from_json(_json(b)),
        _encoded(body),
        CONTENT_TYPE_JSON,
    )


def list_sandboxes() -> Call[list[SandboxInfo]]:
    return Call(
        "list sandboxes",
        "daemon",
        "GET",
        _target("sandboxes"),
        lambda b: [SandboxInfo.from_json(item) for item in _items(b, "sandboxes")],
    )


def get_sandbox(sandbox_id: str) -> Call[SandboxInfo]:
    return Call(
        "get sandbox",
        sandbox_id,
        "GET",
        _target("sandboxes", sandbox_id),
        lambda b: SandboxInfo.from_json(_json(b)),
    )


def kill_sandbox(sandbox_id: str) -> Call[None]:
    return Call("kill sandbox", sandbox_id, "DELETE", _target("sandboxes", sandbox_id), _nothing)


def set_ttl(sandbox_id: str, ttl_s: float | None) -> Call[None]:
    return Call(
        "set time to live",
        sandbox_id,
        "POST",
        _target("sandboxes", sandbox_id, "ttl"),
        _nothing,
        _encoded({"ttl_s": ttl_s}),
        CONTENT_TYPE_JSON,
    )


def get_metrics(sandbox_id: str) -> Call[SandboxMetrics]:
    return Call(
        "get metrics",
        sandbox_id,
        "GET",
        _target("sandboxes", sandbox_id, "metrics"),
        lambda b: SandboxMetrics.from_json(_json(b)),
    )


# Commands


def run_command(
    sandbox_id: str,
    command: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    timeout_s: float | None = None,
    stdin: StdinMode = StdinMode.NULL,
    inline_stdin: bytes = b"",
    max_output_bytes: int | None = None,
) -> Call[None]:
    """A shell command line (a str), or a program with its arguments (a sequence)."""
    if len(inline_stdin) > MAX_INLINE_STDIN_BYTES:
        raise InvalidRequest(
            f"{len(inline_stdin)} bytes of inline input exceed {MAX_INLINE_STDIN_BYTES}",
            operation="run",
            object=sandbox_id,
        )
    shell = isinstance(command, str)
    header = _given(
        command=command if shell else None,
        argv=None if shell else list(command),
        env=dict(env) if env else None,
        cwd=cwd,
        user=user,
        timeout_s=timeout_s,
        stdin=stdin.value,
        max_output_bytes=max_output_bytes,
    )
    body = encode_json_frame(FrameType.HEADER, header)
    if inline_stdin:
        body += encode_frame(FrameType.STDIN, inline_stdin)
    return Call(
        "run",
        command if isinstance(command, str) else " ".join(command),
        "POST",
        _target("sandboxes", sandbox_id, "exec"),
        _nothing,
        body,
        CONTENT_TYPE_FRAMES,
    )


def send_stdin(sandbox_id: str, exec_id: int, data: bytes, *, eof: bool) -> Call[None]:
    return Call(
        "send input",
        f"command {exec_id} of {sandbox_id}",
        "POST",
        _target("sandboxes", sandbox_id, "execs", str(exec_id), "stdin", eof="1" if eof else None),
        _nothing,
        data,
        CONTENT_TYPE_BYTES,
    )


def send_signal(sandbox_id: str, exec_id: int, signal: int, *, whole_tree: bool) -> Call[None]:
    return Call(
        f"send signal {signal}",
        f"command {exec_id} of {sandbox_id}",
        "POST",
        _target("sandboxes", sandbox_id, "execs", str(exec_id), "signal"),
        _nothing,
        _encoded({"signal": signal, "whole_tree": whole_tree}),
        CONTENT_TYPE_JSON,
    )


# Files


def read_file(sandbox_id: str, path: str, user: str | None) -> Call[bytes]:
    return Call(
        "read file",
        path,
        "GET",
        _target("sandboxes", sandbox_id, "files", path=path, user=user),
        bytes,
    )


def write_file(
    sandbox_id: str, path: str, user: str | None, mode: int | None, data: bytes = b""
) -> Call[None]:
    return Call(
        "write file",
        path,
        "PUT",
        _target("sandboxes", sandbox_id, "files", path=path, user=user, mode=_octal(mode)),
        _nothing,
        data,
        CONTENT_TYPE_BYTES,
    )


def remove_file(sandbox_id: str, path: str, user: str | None, *, recursive: bool) -> Call[None]:
    return Call(
        "remove file",
        path,
        "DELETE",
        _target(
            "sandboxes",
            sandbox_id,
            "files",
            path=path,
            user=user,
            recursive="true" if recursive else None,
        ),
        _nothing,
    )


def stat_file(sandbox_id: str, path: str, user: str | None) -> Call[FileEntry]:
    return Call(
        "stat file",
        path,
        "GET",
        _target("sandboxes", sandbox_id, "files", "stat", path=path, user=user),
        lambda b: FileEntry.from_json(_json(b)),
    )


def list_files(sandbox_id: str, path: str, user: str | None, depth: int) -> Call[FileListing]:
    def parse(body: bytes) -> FileListing:
        entries = tuple(FileEntry.from_json(item) for item in _items(body, "entries"))
        return FileListing(entries, bool(_json(body).get("truncated", False)))

    return Call(
        "list directory",
        path,
        "GET",
        _target("sandboxes", sandbox_id, "files", "list", path=path, user=user, depth=depth),
        parse,
    )


def make_directory(
    sandbox_id: str, path: str, user: str | None, mode: int, *, parents: bool
) -> Call[None]:
    return Call(
        "make directory",
        path,
        "POST",
        _target("sandboxes", sandbox_id, "files", "mkdir"),
        _nothing,
        _encoded(_given(path=path, mode=mode, parents=parents, user=user)),
        CONTENT_TYPE_JSON,
    )


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:o}"


# Images


def list_images() -> Call[list[ImageInfo]]:
    return Call(
        "list images",
        "daemon",
        "GET",
        _target("images"),
        lambda b: [ImageInfo.from_json(item) for item in _items(b, "images")],
    )


def put_image(name: str) -> Call[ImageInfo]:
    return Call(
        "import image",
        name,
        "PUT",
        _target("images", name),
        lambda b: ImageInfo.from_json(_json(b)),
        b"",
        "application/x-tar",
    )


def import_image(name: str, path: str) -> Call[ImageInfo]:
    return Call(
        "import image",
        name,
        "POST",
        _target("images", name, "import"),
        lambda b: ImageInfo.from_json(_json(b)),
        _encoded({"path": path}),
        CONTENT_TYPE_JSON,
    )


def build_base(name: str, suite: str | None, packages: Sequence[str] | None) -> Call[None]:
    return Call(
        "build image",
        name,
        "POST",
        _target("images", name, "build-base"),
        _nothing,
        _encoded(_given(suite=suite, packages=list(packages) if packages else None)),
        CONTENT_TYPE_JSON,
    )


def remove_image(name: str) -> Call[None]:
    return Call("remove image", name, "DELETE", _target("images", name), _nothing)
