"""The requests exec and run: one HEADER frame, then inline input; read and checked. No sandbox
here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sandboxd.commands import CommandSpec
from sandboxd.errors import InvalidRequest, OperationTimeout, TooLarge
from sandboxd.protocol import (
    MAX_CONTROL_BYTES,
    MAX_INLINE_STDIN_BYTES,
    FrameDecoder,
    FrameType,
    OnDisconnect,
    ProtocolError,
    StdinMode,
)
from sandboxd.terminal import MAX_COLUMNS, MAX_ROWS, TerminalSize

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Header = TypeVar("Header")

_MAX_REQUEST_BYTES = MAX_CONTROL_BYTES + 2 * MAX_INLINE_STDIN_BYTES
_MAX_ARGUMENTS = 8192
_HEADER_FIELDS = frozenset(
    {
        "argv", "command", "cwd", "env", "max_output_bytes", "on_disconnect", "pty", "stdin",
        "timeout_s", "user",
    }
)  # fmt: skip

_RUN_FIELDS = frozenset({"sandbox", "remove"})


@dataclass(frozen=True)
class RunHeader:
    """What the HEADER frame of a request for a new sandbox and a command in it asks for."""

    command: CommandSpec
    sandbox: dict[str, Any]
    """The body of a create, not checked yet."""
    remove: bool


def _refuse(field: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the request is refused", operation="exec", object=f"field {field}", cause=cause
    )


def parse_header(table: dict[str, Any], stdin_data: bytes) -> CommandSpec:
    """Check the HEADER frame by hand: a schema library costs more than the whole fork."""
    unknown = set(table) - _HEADER_FIELDS
    if unknown:
        raise _refuse(sorted(unknown)[0], "no such field")
    stdin = table.get("stdin", "null")
    if not isinstance(stdin, str) or stdin not in ("null", "inline", "stream"):
        raise _refuse("stdin", "must be null, inline or stream")
    if stdin_data and stdin != "inline":
        raise _refuse("stdin", "input frames need stdin inline")
    on_disconnect = table.get("on_disconnect", "kill")
    if on_disconnect not in ("kill", "keep"):
        raise _refuse("on_disconnect", "must be kill or keep")
    terminal = _parse_terminal(table.get("pty"))
    if terminal is not None and stdin != "null":
        raise _refuse("stdin", "a terminal is the input; stdin must be null")
    return CommandSpec(
        argv=_parse_argv(table),
        env=_parse_env(table.get("env")),
        cwd=_optional_text(table, "cwd"),
        user=_optional_text(table, "user"),
        timeout_s=_optional_number(table, "timeout_s", allow_zero=False),
        stdin=StdinMode(stdin),
        stdin_data=stdin_data,
        max_output_bytes=_optional_int(table, "max_output_bytes"),
        on_disconnect=OnDisconnect(on_disconnect),
        terminal=terminal,
    )


def parse_run_header(table: dict[str, Any], stdin_data: bytes) -> RunHeader:
    """The header of exec with two fields more; what is null is as if absent."""
    command = {name: value for name, value in table.items() if name not in _RUN_FIELDS}
    sandbox, remove = table.get("sandbox"), table.get("remove")
    if sandbox is not None and not isinstance(sandbox, dict):
        raise _refuse("sandbox", "must be an object, as the body of a create")
    if remove is not None and not isinstance(remove, bool):
        raise _refuse("remove", "must be true or false")
    return RunHeader(parse_header(command, stdin_data), sandbox or {}, remove or False)


def _parse_argv(table: dict[str, Any]) -> tuple[str, ...]:
    argv, command = table.get("argv"), table.get("command")
    if (argv is None) == (command is None):
        raise _refuse("argv", "exactly one of argv and command is needed")
    if command is not None:
        if not isinstance(command, str) or "\0" in command:
            raise _refuse("command", "must be a string without NUL")
        return ("/bin/sh", "-c", command)
    if (
        not isinstance(argv, list)
        or not 0 < len(argv) <= _MAX_ARGUMENTS
        or not all(isinstance(each, str) and "\0" not in each for each in argv)
    ):
        raise _refuse("argv", f"must be 1 to {_MAX_ARGUMENTS} strings without NUL")
    if not argv[0]:
        raise _refuse("argv", "the program's name is empty")
    return tuple(argv)


def _parse_terminal(pty: Any) -> TerminalSize | None:
    if pty is None:
        return None
    if not isinstance(pty, dict) or set(pty) != {"rows", "cols"}:
        raise _refuse("pty", "must be an object of rows and cols")
    for name, limit in (("rows", MAX_ROWS), ("cols", MAX_COLUMNS)):
        value = pty[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise _refuse(f"pty.{name}", f"must be a whole number from 1 to {limit}")
    return TerminalSize(pty["rows"], pty["cols"])


def _parse_env(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise _refuse("env", "must be an object of strings")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or not isinstance(value, str) or "\0" in value:
            raise _refuse("env", f"{name!r} is not a name with a string value")
    return env


def _optional_text(table: dict[str, Any], field: str) -> str | None:
    value = table.get(field)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise _refuse(field, "must be a string without NUL")
    if field == "cwd" and value and not value.startswith("/"):
        raise _refuse(field, "must be an absolute path")
    return value


def _optional_number(table: dict[str, Any], field: str, *, allow_zero: bool) -> float | None:
    value = table.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise _refuse(field, "must be a number that is not negative")
    if value == 0 and not allow_zero:
        raise _refuse(field, "must be above zero")
    return float(value)


def _optional_int(table: dict[str, Any], field: str) -> int | None:
    value = _optional_number(table, field, allow_zero=True)
    return None if value is None else int(value)


async def read_request(
    receive: Receive, parse: Callable[[dict[str, Any], bytes], Header], timeout_s: float
) -> Header:
    """The whole request, as `parse` has it: one HEADER frame, then inline input, both bounded; so
    is the time that it takes to come."""
    try:
        async with asyncio.timeout(timeout_s):
            header, stdin_data = await _read_frames(receive)
    except TimeoutError:
        raise OperationTimeout(
            "the request has not come",
            operation="exec",
            object="body",
            cause=f"all of it must come within {timeout_s:g} s",
        ) from None
    return parse(header, stdin_data)


async def _read_frames(receive: Receive) -> tuple[dict[str, Any], bytes]:
    decoder = FrameDecoder()
    header: dict[str, Any] | None = None
    stdin_data = bytearray()
    received = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the request was cut", operation="exec", object="body")
        body = message.get("body", b"")
        received += len(body)
        if received > _MAX_REQUEST_BYTES:
            raise TooLarge("the request is too large", operation="exec", object="body")
        try:
            for frame in decoder.feed(body):
                if header is None and frame.type is FrameType.HEADER:
                    header = frame.json()
                elif header is not None and frame.type is FrameType.STDIN:
                    stdin_data += frame.payload
                else:
                    raise ProtocolError(f"a {frame.type.name} frame does not belong here")
        except ProtocolError as error:
            raise _refuse("body", str(error)) from error
        if len(stdin_data) > MAX_INLINE_STDIN_BYTES:
            raise TooLarge(
                "the inline input is too large",
                operation="exec",
                object="field stdin",
                cause=f"more than {MAX_INLINE_STDIN_BYTES} bytes; stream it instead",
            )
        if not message.get("more_body", False):
            break
    if header is None or decoder.mid_frame:
        raise _refuse("body", "it does not hold one whole HEADER frame")
    return header, bytes(stdin_data)
