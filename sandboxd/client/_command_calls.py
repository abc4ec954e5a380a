"""Every request about commands as a value. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sandboxd.client._call import Call, decoded, encoded, given, items, nothing, target
from sandboxd.client._calls import new_sandbox
from sandboxd.client.types import CommandInfo, Exit, ForkOptions, PtySize, Started
from sandboxd.errors import InvalidRequest, NotFound
from sandboxd.protocol import (
    CONTENT_TYPE_BYTES,
    CONTENT_TYPE_FRAMES,
    CONTENT_TYPE_JSON,
    MAX_INLINE_STDIN_BYTES,
    FrameType,
    OnDisconnect,
    StdinMode,
    encode_frame,
    encode_json_frame,
)


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
    keep: bool = False,
    pty: PtySize | None = None,
) -> Call[None]:
    """A shell command line (a str), or a program with its arguments (a sequence). `keep`: it goes
    on without the client."""
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
        on_disconnect=OnDisconnect.KEEP.value if keep else None,
        pty=_size(pty),
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
        sandbox=new_sandbox(options, image, template),
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
    return Call("run", _shown(command), "POST", path, nothing, body, CONTENT_TYPE_FRAMES)


def resize(sandbox_id: str, exec_id: int, pty: PtySize) -> Call[None]:
    return Call(
        "resize terminal",
        f"command {exec_id} of {sandbox_id}",
        "POST",
        target("sandboxes", sandbox_id, "execs", str(exec_id), "resize"),
        nothing,
        encoded({"rows": pty[0], "cols": pty[1]}),
        CONTENT_TYPE_JSON,
    )


def _size(pty: PtySize | None) -> dict[str, int] | None:
    return None if pty is None else {"rows": pty[0], "cols": pty[1]}


def _shown(command: str | Sequence[str]) -> str:
    return command if isinstance(command, str) else " ".join(command)


def start_command(
    sandbox_id: str,
    command: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    timeout_s: float | None = None,
    stdin: bool = False,
    pty: PtySize | None = None,
) -> Call[CommandInfo]:
    """As `run_command`, in the background from the start."""
    body = _command_header(
        command,
        env=dict(env) if env else None,
        cwd=cwd,
        user=user,
        timeout_s=timeout_s,
        stdin=stdin,
        pty=_size(pty),
    )
    return Call(
        "start",
        _shown(command),
        "POST",
        target("sandboxes", sandbox_id, "execs"),
        lambda b: CommandInfo.from_json(decoded(b)),
        encoded(body),
        CONTENT_TYPE_JSON,
    )


def attach(
    sandbox_id: str,
    exec_id: int,
    *,
    epoch: int | None = None,
    stdout_position: int = 0,
    stderr_position: int = 0,
    max_output_bytes: int | None = None,
) -> Call[None]:
    """The output of a kept command, from the positions on."""
    return Call(
        "attach",
        f"command {exec_id} of {sandbox_id}",
        "GET",
        target(
            "sandboxes",
            sandbox_id,
            "execs",
            str(exec_id),
            "attach",
            epoch=epoch,
            stdout_position=stdout_position or None,
            stderr_position=stderr_position or None,
            max_output_bytes=max_output_bytes,
        ),
        nothing,
    )


def attach_again(sandbox_id: str, started: Started, positions: Mapping[str, int]) -> Call[None]:
    """`attach`, from where an earlier one stopped."""
    return attach(
        sandbox_id,
        started.exec_id,
        epoch=started.epoch,
        stdout_position=positions["stdout"],
        stderr_position=positions["stderr"],
    )


def get_command(sandbox_id: str, exec_id: int) -> Call[CommandInfo]:
    return Call(
        "get command",
        f"command {exec_id} of {sandbox_id}",
        "GET",
        target("sandboxes", sandbox_id, "execs", str(exec_id)),
        lambda b: CommandInfo.from_json(decoded(b)),
    )


def wait_command(sandbox_id: str, exec_id: int, timeout_s: float) -> Call[Exit]:
    return Call(
        "wait",
        f"command {exec_id} of {sandbox_id}",
        "GET",
        target("sandboxes", sandbox_id, "execs", str(exec_id), "wait", timeout_s=f"{timeout_s:g}"),
        lambda b: Exit.from_json(decoded(b)),
    )


def with_pid(commands: Iterable[CommandInfo], pid: int, sandbox_id: str) -> CommandInfo:
    """The one that runs under this number."""
    for each in commands:
        if each.running and each.pid == pid:
            return each
    raise NotFound(
        "there is no such command", operation="find command", object=f"pid {pid} of {sandbox_id}"
    )


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
