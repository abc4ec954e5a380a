"""Every request of the API as a value. No I/O here.

The synchronous and the asynchronous client both carry out these values, so the protocol is
written down once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandboxd.client._call import Call, decoded, encoded, given, items, nothing, target
from sandboxd.client.types import (
    CommandInfo,
    DaemonInfo,
    ForkOptions,
    SandboxInfo,
    SandboxMetrics,
)
from sandboxd.errors import InvalidRequest
from sandboxd.protocol import (
    CONTENT_TYPE_BYTES,
    CONTENT_TYPE_FRAMES,
    CONTENT_TYPE_JSON,
    MAX_INLINE_STDIN_BYTES,
    FrameType,
    StdinMode,
    encode_frame,
    encode_json_frame,
)

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
    body = _new_sandbox(options, image, template)
    return Call(
        "create sandbox",
        f"from {template or f'image {image}'}",
        "POST",
        target("sandboxes"),
        lambda b: SandboxInfo.from_json(decoded(b)),
        encoded(body),
        CONTENT_TYPE_JSON,
    )


def _new_sandbox(
    options: ForkOptions, image: str | None, template: str | None
) -> dict[str, object]:
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
    )


def list_sandboxes() -> Call[list[SandboxInfo]]:
    return Call(
        "list sandboxes",
        "daemon",
        "GET",
        target("sandboxes"),
        lambda b: [SandboxInfo.from_json(item) for item in items(b, "sandboxes")],
    )


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


def get_metrics(sandbox_id: str) -> Call[SandboxMetrics]:
    return Call(
        "get metrics",
        sandbox_id,
        "GET",
        target("sandboxes", sandbox_id, "metrics"),
        lambda b: SandboxMetrics.from_json(decoded(b)),
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
    header = _command_header(
        command,
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
    return _start(command, target("sandboxes", sandbox_id, "exec"), body)


def start_sandbox(
    command: str | Sequence[str],
    options: ForkOptions,
    *,
    image: str | None = None,
    template: str | None = None,
    remove: bool = False,
    timeout_s: float | None = None,
    stdin: StdinMode = StdinMode.NULL,
    max_output_bytes: int | None = None,
) -> Call[None]:
    """`create_sandbox` and `run_command` in it, in one request."""
    header = _command_header(
        command,
        sandbox=_new_sandbox(options, image, template),
        remove=remove,
        timeout_s=timeout_s,
        stdin=stdin.value,
        max_output_bytes=max_output_bytes,
    )
    return _start(command, target("run"), encode_json_frame(FrameType.HEADER, header))


def _command_header(command: str | Sequence[str], **fields: object) -> dict[str, object]:
    if isinstance(command, str):
        return given(command=command, **fields)
    return given(argv=list(command), **fields)


def _start(command: str | Sequence[str], path: str, body: bytes) -> Call[None]:
    shown = command if isinstance(command, str) else " ".join(command)
    return Call("run", shown, "POST", path, nothing, body, CONTENT_TYPE_FRAMES)


def send_stdin(sandbox_id: str, exec_id: int, data: bytes, *, eof: bool) -> Call[None]:
    return Call(
        "send input",
        f"command {exec_id} of {sandbox_id}",
        "POST",
        target("sandboxes", sandbox_id, "execs", str(exec_id), "stdin", eof="1" if eof else None),
        nothing,
        data,
        CONTENT_TYPE_BYTES,
    )


def list_commands(sandbox_id: str) -> Call[list[CommandInfo]]:
    return Call(
        "list commands",
        sandbox_id,
        "GET",
        target("sandboxes", sandbox_id, "execs"),
        lambda b: [CommandInfo.from_json(item) for item in items(b, "commands")],
    )


def read_output(sandbox_id: str, exec_id: int, stream: str) -> Call[bytes]:
    return Call(
        "read output",
        f"command {exec_id} of {sandbox_id}",
        "GET",
        target("sandboxes", sandbox_id, "execs", str(exec_id), "output", stream=stream),
        bytes,
    )


def send_signal(sandbox_id: str, exec_id: int, signal: int, *, whole_tree: bool) -> Call[None]:
    return Call(
        f"send signal {signal}",
        f"command {exec_id} of {sandbox_id}",
        "POST",
        target("sandboxes", sandbox_id, "execs", str(exec_id), "signal"),
        nothing,
        encoded({"signal": signal, "whole_tree": whole_tree}),
        CONTENT_TYPE_JSON,
    )
