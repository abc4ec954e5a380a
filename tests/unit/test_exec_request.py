"""The exec request: one HEADER frame, then inline input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.api.exec_request import (
    Header,
    Message,
    parse_header,
    parse_run_header,
    read_request,
)
from sandboxd.commands import CommandSpec
from sandboxd.errors import InvalidRequest, TooLarge, VenusError
from sandboxd.protocol import FrameType, StdinMode, encode_frame, encode_json_frame

TIMEOUT_S = 60.0


def parse(body: bytes, piece: int = 1 << 20) -> CommandSpec:
    return parse_as(parse_header, body, piece)


def parse_as(
    reader: Callable[[dict[str, Any], bytes], Header], body: bytes, piece: int = 1 << 20
) -> Header:
    chunks = [body[start : start + piece] for start in range(0, len(body), piece)] or [b""]
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ]

    async def receive() -> Message:
        return messages.pop(0)

    return asyncio.run(read_request(receive, reader, TIMEOUT_S))


def header(**fields: Any) -> bytes:
    return encode_json_frame(FrameType.HEADER, fields)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_request_in_any_pieces(piece: int) -> None:
    body = header(command="cat", stdin="inline", env={"A": "b"}, timeout_s=1.5, cwd="/x")
    body += encode_frame(FrameType.STDIN, b"one") + encode_frame(FrameType.STDIN, b"\0two")
    parsed = parse(body, piece)
    assert parsed.argv == ("/bin/sh", "-c", "cat")
    assert (parsed.stdin, parsed.stdin_data) == (StdinMode.INLINE, b"one\0two")
    assert (parsed.env, parsed.timeout_s, parsed.cwd, parsed.user) == ({"A": "b"}, 1.5, "/x", None)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "argv"),
        ({"argv": ["a"], "command": "b"}, "argv"),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": "ls"}, "argv"),
        ({"argv": ["a", 1]}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"argv": ["x"] * 8193}, "argv"),
        ({"command": 5}, "command"),
        ({"command": "a\0"}, "command"),
        ({"command": "a", "env": ["A=b"]}, "env"),
        ({"command": "a", "env": {"A=": "b"}}, "env"),
        ({"command": "a", "env": {"": "b"}}, "env"),
        ({"command": "a", "env": {"A": 1}}, "env"),
        ({"command": "a", "cwd": "relative"}, "cwd"),
        ({"command": "a", "cwd": 1}, "cwd"),
        ({"command": "a", "user": 0}, "user"),
        ({"command": "a", "timeout_s": 0}, "timeout_s"),
        ({"command": "a", "timeout_s": -1}, "timeout_s"),
        ({"command": "a", "timeout_s": True}, "timeout_s"),
        ({"command": "a", "timeout_s": "1"}, "timeout_s"),
        ({"command": "a", "timeout_s": float("nan")}, "timeout_s"),
        ({"command": "a", "stdin": "pty"}, "stdin"),
        ({"command": "a", "stdin": ["null"]}, "stdin"),
        ({"command": "a", "max_output_bytes": -1}, "max_output_bytes"),
        ({"command": "a", "tiemout_s": 1}, "tiemout_s"),
        ({"command": "a", "sandbox": {}}, "sandbox"),
        ({"command": "a", "remove": True}, "remove"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse(header(**fields))
    assert raised.value.object == f"field {named}"
    assert raised.value.operation == "exec" and raised.value.cause


def test_a_run_is_an_exec_with_a_sandbox() -> None:
    body = {"image": "base", "command": "not looked at here"}
    frames = header(command="cat", stdin="inline", sandbox=body, remove=True)
    parsed = parse_as(parse_run_header, frames + encode_frame(FrameType.STDIN, b"x"), 7)
    assert parsed.command == parse(
        header(command="cat", stdin="inline") + encode_frame(FrameType.STDIN, b"x")
    )
    assert (parsed.sandbox, parsed.remove) == (body, True)


@pytest.mark.parametrize("fields", [{}, {"sandbox": None, "remove": None}])
def test_a_run_without_a_word_on_the_sandbox(fields: dict[str, None]) -> None:
    parsed = parse_as(parse_run_header, header(command="a", **fields))
    assert (parsed.sandbox, parsed.remove) == ({}, False)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"command": "a", "sandbox": []}, "sandbox"),
        ({"command": "a", "sandbox": "base"}, "sandbox"),
        ({"command": "a", "remove": 1}, "remove"),
        ({"command": "a", "remove": "true"}, "remove"),
        ({"command": "a", "image": "base"}, "image"),
        ({"sandbox": {}}, "argv"),
    ],
)
def test_a_wrong_field_of_a_run_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_as(parse_run_header, header(**fields))
    assert raised.value.object == f"field {named}" and raised.value.cause


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        header(command="a")[:-1],
        encode_frame(FrameType.HEADER, b"not json"),
        encode_frame(FrameType.HEADER, json.dumps([1]).encode()),
        encode_frame(FrameType.STDIN, b"x") + header(command="a"),
        header(command="a") + header(command="a"),
        header(command="a") + encode_frame(FrameType.STDIN, b"x"),
        header(command="a", stdin="stream") + encode_frame(FrameType.STDIN, b"x"),
        header(command="a") + encode_frame(FrameType.STDOUT, b"x"),
        b"\xff" * 8,
    ],
)
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(body)


@pytest.mark.parametrize("size", [(1 << 20) + 1, 4 << 20])
def test_inline_input_is_bounded(size: int) -> None:
    body = header(command="a", stdin="inline") + encode_frame(FrameType.STDIN, b"x" * size)
    with pytest.raises(TooLarge):
        parse(body)


def test_a_cut_request_starts_nothing() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(VenusError):
        asyncio.run(read_request(receive, parse_header, TIMEOUT_S))
